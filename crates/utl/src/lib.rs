//! etcdutl: snapshots and data directories, worked on as files.

#![forbid(unsafe_code)]
