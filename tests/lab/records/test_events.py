"""Events as lines of JSON."""

import pytest

from trainact.lab.records.events import Event, read_event, write_event


@pytest.mark.parametrize(
    "event",
    [Event("note", text="ä\n✓"), Event("end", record={"a": [1, None]}), Event("step", 1, 2)],
)
def test_events_cross_from_one_process_to_another(event):
    line = write_event(event)
    assert "\n" not in line
    assert read_event(line) == event
