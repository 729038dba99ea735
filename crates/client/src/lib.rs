//! A client of an etcd v3 cluster.

#![forbid(unsafe_code)]
