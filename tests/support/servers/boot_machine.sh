# Run by tests.support.servers.machine in namespaces of its own: bash boot_machine.sh FOLDER SHARED...
#
# Mounts a copy-on-write view of this machine's root below FOLDER, and becomes its systemd. Each SHARED folder is visible in
# it, read-only, under the same name. Nothing that is written there leaves the namespaces.
set -eu
folder=$1
shift

mount --make-rprivate /
mount -t tmpfs tmpfs "$folder"
mkdir "$folder/upper" "$folder/work" "$folder/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$folder/upper,workdir=$folder/work" "$folder/root"
cd "$folder/root"
mount -t proc proc proc
# systemd must not change this machine's kernel.
mount --bind -o ro proc/sys proc/sys
mount -t sysfs -o ro sysfs sys
mount -t cgroup2 cgroup2 sys/fs/cgroup
mount -t tmpfs tmpfs run
# Cleaning a copy of this machine's /tmp would take longer than everything else.
mount -t tmpfs -o mode=1777 tmpfs tmp
mount -t tmpfs -o mode=755 tmpfs dev
for device in null zero full random urandom tty; do
  touch "dev/$device"
  mount --bind "/dev/$device" "dev/$device"
done
mkdir dev/shm
mount -t tmpfs tmpfs dev/shm
mkdir dev/pts
mount -t devpts -o newinstance,ptmxmode=666 devpts dev/pts
ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd
touch dev/console
for path in "$@"; do
  mkdir -p "./$path"
  mount --bind -o ro "$path" "./$path"
done
mkdir -p run/systemd/system
for unit in systemd-modules-load systemd-udevd systemd-udev-trigger systemd-remount-fs; do
  ln -s /dev/null "run/systemd/system/$unit.service"
done
# Images for containers forbid packages to start and stop services.
rm -f usr/sbin/policy-rc.d
ip link set lo up
# Not chroot: the kernel refuses user namespaces, which units with PrivateUsers= need, below a changed root.
mkdir run/before
pivot_root . run/before
umount --lazy /run/before
rmdir /run/before
# systemd mounts credentials in a namespace of its own, from which they must reach this one.
mount --make-rshared /
exec env -i container=test PATH=/usr/sbin:/usr/bin:/sbin:/bin /usr/lib/systemd/systemd --unit=sysinit.target
