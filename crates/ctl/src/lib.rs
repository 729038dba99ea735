//! etcdctl and etcd-defrag.

#![forbid(unsafe_code)]
