//! Member and cluster ids, computed as etcd computes them.

use dolmen_types::{ClusterId, MemberId};
use sha1::{Digest, Sha1};

fn first_eight(hash: Sha1) -> u64 {
    let digest = hash.finalize();
    u64::from_be_bytes(digest[..8].try_into().expect("SHA-1 has 20 bytes"))
}

/// The id of a member of a new cluster: from its peer URLs (in any order) and the cluster token.
pub fn member_id(peer_urls: &[String], token: &str) -> MemberId {
    let mut urls = peer_urls.to_vec();
    urls.sort();
    let mut hash = Sha1::new();
    for url in &urls {
        hash.update(url);
    }
    hash.update(token);
    first_eight(hash)
}

/// The id of a new cluster: from the ids of its first members (in any order).
pub fn cluster_id(members: &[MemberId]) -> ClusterId {
    let mut members = members.to_vec();
    members.sort_unstable();
    let mut hash = Sha1::new();
    for id in members {
        hash.update(id.to_be_bytes());
    }
    first_eight(hash)
}

/// Where a member's ids of requests, and its contexts of reads, begin: etcd's form, 2 bytes of the member, 5 bytes of
/// milliseconds at its start, 1 byte to count in, which overflows upwards. So those of different members and of different
/// starts differ, unless a member counts faster than 256 in a millisecond.
pub(crate) fn first_id(member_id: MemberId, incarnation: u64) -> u64 {
    (member_id << 48) | ((incarnation & 0xff_ffff_ffff) << 8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_and_starts_count_in_different_places() {
        let places = [first_id(1, 1_000), first_id(1, 1_001), first_id(2, 1_000), first_id(0x1_0001, 999)];
        assert!(
            places.iter().enumerate().all(|(at, place)| places[..at].iter().all(|other| other.abs_diff(*place) >= 256))
        );
    }

    #[test]
    fn a_default_single_member_has_the_ids_every_etcd_user_knows() {
        let id = member_id(&["http://localhost:2380".into()], "etcd-cluster");
        assert_eq!(id, 0x8e9e_05c5_2164_694d);
        assert_eq!(cluster_id(&[id]), 0xcdf8_1819_4e3a_8c32);
    }
}
