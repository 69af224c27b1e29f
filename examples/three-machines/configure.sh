#!/bin/sh
# Write the settings of one of three machines into the files that the Debian package and deploy/ have:
#
#   sh configure.sh 1 s3://shop-ledger/headgate mqtt.example.org one.example.org two.example.org three.example.org
#
# The arguments: the number of this machine, the ledger, the broker, and the names of the three machines. It changes
# /etc/headgate/headgate.toml and /etc/zookeeper/conf/zoo.cfg (a copy of deploy/zookeeper.cfg), and tells the process that
# counts which ledger. A second call has the same effect. ETC and VAR name other folders, for a try.
set -eu
[ $# = 6 ] || { echo "$0: give the number of this machine, the ledger, the broker, and the names of three machines" >&2; exit 2; }
number=$1 ledger=$2 broker=$3 etc=${ETC:-/etc} var=${VAR:-/var}
shift 3
case $number in [123]) own=$(eval "echo \$$number") ;; *) echo "$0: the number is 1, 2 or 3, not $number" >&2; exit 2 ;; esac
for path in "$etc/headgate/headgate.toml" "$etc/zookeeper/conf/zoo.cfg" "$var/lib/zookeeper"; do
  [ -e "$path" ] || { echo "$0: $path is missing: install headgate and ZooKeeper, with zookeeper.cfg, first" >&2; exit 2; }
done
servers="$1:2281,$2:2281,$3:2281"

sed -i -e "s|^hosts = \"[^\"]*\"|hosts = \"$servers\"|" \
  -e "/^\[broker\]/,/^\[access\]/ s|^host = \"[^\"]*\"|host = \"$broker\"|" \
  -e "/^\[ledger\]/,/^\[drain\]/ s|^url = \"[^\"]*\"|url = \"$ledger\"|" \
  -e "/^\[http\]/,/^\[metrics\]/ s|^host = \"[^\"]*\"|host = \"$own\"|" \
  -e "/^\[http\]/,/^\[metrics\]/ s|^#* *advertised_host = \"[^\"]*\"|advertised_host = \"$own\"|" \
  "$etc/headgate/headgate.toml"

sed -i -e "s|^secureClientPortAddress=.*|secureClientPortAddress=$own|" \
  -e "s|^#* *server\.1=.*|server.1=$1:2888:3888|" -e "s|^#* *server\.2=.*|server.2=$2:2888:3888|" \
  -e "s|^#* *server\.3=.*|server.3=$3:2888:3888|" \
  -e 's|^# *\(quorumListenOnAllIPs=\)|\1|' -e 's|^# *\(sslQuorum=\)|\1|' -e 's|^# *\(ssl\.quorum\.\)|\1|' \
  "$etc/zookeeper/conf/zoo.cfg"
echo "$number" >"$var/lib/zookeeper/myid"
touch "$etc/headgate/backlog.env"
sed -i '/^HEADGATE_LEDGER=/d' "$etc/headgate/backlog.env"
echo "HEADGATE_LEDGER=$ledger" >>"$etc/headgate/backlog.env"
