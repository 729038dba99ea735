//! etcd's small files beside the database: `<term>-<index>.snap`, what raft begins with.
//!
//! The file is `snappb.Snapshot`: CRC-32C of the data, and the data, a `raftpb.Snapshot`. Its own data is the membership in
//! the form of etcd's version 2 store, as JSON, which 3.5 takes for the truth, 3.6 has to be able to read, and 3.7 ignores.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use bytes::Bytes;
use dolmen_env::{Disk, OpenMode};
use dolmen_machine::Member;
use dolmen_proto::{raftpb, snappb};
use dolmen_types::{Index, MemberId, Term};
use prost::Message;
use serde_json::Value;

pub(crate) fn file_name(term: Term, index: Index) -> String {
    format!("{term:016x}-{index:016x}.snap")
}

/// Writes the file for `metadata` into `dir`, durable but for its name.
pub(crate) fn write(disk: &dyn Disk, dir: &Path, metadata: raftpb::SnapshotMetadata, store: Bytes) -> io::Result<()> {
    let path = dir.join(file_name(metadata.term, metadata.index));
    let data = raftpb::Snapshot { data: store, metadata: Some(metadata) }.encode_to_vec();
    let bytes = snappb::Snapshot { crc: crc32c::crc32c(&data), data: data.into() }.encode_to_vec();
    let file = disk.open(&path, OpenMode::Truncate)?;
    file.write_all_at(&bytes, 0)?;
    file.sync_data()
}

/// Reads the file of (term, index); `None` when it is not there or is not whole.
pub(crate) fn read(disk: &dyn Disk, dir: &Path, term: Term, index: Index) -> io::Result<Option<raftpb::Snapshot>> {
    let bytes = match disk.read(&dir.join(file_name(term, index))) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let Ok(outer) = snappb::Snapshot::decode(&bytes[..]) else { return Ok(None) };
    if outer.data.is_empty() || crc32c::crc32c(&outer.data) != outer.crc {
        return Ok(None);
    }
    Ok(raftpb::Snapshot::decode(outer.data).ok())
}

/// The members that a version 2 store names; `None` when it is no such store.
pub(crate) fn members(store: &[u8]) -> Option<BTreeMap<MemberId, Member>> {
    let store: Value = serde_json::from_slice(store).ok()?;
    let mut all = BTreeMap::new();
    let Some(members) = store.pointer("/Root/Children/0/Children/members/Children") else { return Some(all) };
    for (hex, node) in members.as_object()? {
        let id = u64::from_str_radix(hex, 16).ok()?;
        let part = |name: &str| -> Option<Member> {
            let text = node.pointer(&format!("/Children/{name}/Value"))?.as_str()?;
            let mut fields: Value = serde_json::from_str(text).ok()?;
            fields["id"] = id.into();
            serde_json::from_value(fields).ok()
        };
        let mut member = part("raftAttributes")?;
        if let Some(attributes) = part("attributes") {
            member.name = attributes.name;
            member.client_urls = attributes.client_urls;
        }
        all.insert(id, member);
    }
    Some(all)
}

#[cfg(test)]
mod tests {
    use dolmen_env::SimDisk;
    use dolmen_machine::Membership;

    use super::*;

    #[test]
    fn a_snapshot_file_comes_back_with_its_members() {
        let disk = SimDisk::new(1);
        let dir = Path::new("/snap");
        disk.create_dir_all(dir).unwrap();
        let mut membership = Membership::default();
        let member = Member {
            id: 7,
            peer_urls: vec!["http://a:1".into(), "http://b:1".into()],
            is_learner: true,
            name: "n".into(),
            client_urls: vec!["http://a:2".into()],
        };
        membership.members.insert(7, member.clone());
        membership.members.insert(9, Member { id: 9, peer_urls: vec!["http://c:1".into()], ..Member::default() });
        let metadata = raftpb::SnapshotMetadata { index: 5, term: 2, conf_state: None };
        write(&disk, dir, metadata, membership.to_v2_store_json(5).into()).unwrap();
        let found = read(&disk, dir, 2, 5).unwrap().unwrap();
        assert_eq!(members(&found.data), Some(membership.members));
        assert_eq!(found.metadata.unwrap().index, 5);
        assert!(read(&disk, dir, 2, 6).unwrap().is_none(), "another one's name");

        let path = dir.join(file_name(2, 5));
        let mut bytes = disk.read(&path).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        disk.open(&path, OpenMode::Truncate).unwrap().write_all_at(&bytes, 0).unwrap();
        assert!(read(&disk, dir, 2, 5).unwrap().is_none(), "a flipped bit");
    }
}
