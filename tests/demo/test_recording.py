"""A recording shows each step at its time, and nothing of what make and its environment print."""

from demo.recording import picture


def test_a_line_appears_when_it_was_printed() -> None:
    run = ["ready: .venv/bin/headgate --help", "  12.0 s  topic <a> created; the folder of this run is /tmp/x", "held"]
    text = "\n".join(picture(run))

    assert 'delay: 2.00s">  12.0 s  topic &lt;a&gt; created</text>' in text
    assert 'delay: 2.05s">held</text>' in text
    assert "/tmp" not in text
    assert "ready" not in text
