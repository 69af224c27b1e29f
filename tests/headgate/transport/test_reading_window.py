"""Sessions stop and continue reading together."""

from unittest.mock import Mock, call

from headgate.transport.mqtt_packets import MESSAGE_BYTES, ReadingWindow


def test_all_readers_pause_above_the_limit_and_continue_at_half_of_it() -> None:
    window, reader, other = ReadingWindow(4 * (MESSAGE_BYTES + 10)), Mock(), Mock()
    window.readers |= {reader, other}
    for _ in range(4):
        window.take(10)
    assert ([], False) == (reader.mock_calls, window.full)

    window.take(10)
    window.give_back(10)
    window.give_back(10)
    assert ([call.pause_reading()], True) == (reader.mock_calls, window.full)
    window.give_back(10)
    window.give_back(10)
    assert ([call.pause_reading(), call.resume_reading()], False) == (reader.mock_calls, window.full)
    assert reader.mock_calls == other.mock_calls
