//! etcd's own data directories: made from a snapshot or from a Dolmen member, and taken over.

#![forbid(unsafe_code)]
