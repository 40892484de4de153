"""Records: one line per evaluation with what identifies it; statistics over seeds; comparisons of any runs."""

from scse.records.store import FILE, Record, append_records, identity, new_record, read_records, records_of

__all__ = ["FILE", "Record", "append_records", "identity", "new_record", "read_records", "records_of"]
