//! What one user may read and write, merged over its roles.

use bytes::Bytes;
use dolmen_proto::authpb;
use dolmen_proto::authpb::permission::Type;

/// What a request does with keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    Read,
    Write,
}

/// Ranges of keys a user may read, and such it may write. A request's range is permitted when the *union* of the user's
/// ranges holds it, so two roles with neighbouring ranges permit a request over both.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Permissions {
    read: Ranges,
    write: Ranges,
}

impl Permissions {
    /// Merges the permissions of all roles of a user.
    pub fn merge<'a>(granted: impl IntoIterator<Item = &'a authpb::Permission>) -> Self {
        let (mut read, mut write) = (Vec::new(), Vec::new());
        for permission in granted {
            let range = Range::granted(permission);
            match permission.perm_type() {
                Type::Read => read.push(range),
                Type::Write => write.push(range),
                Type::Readwrite => {
                    read.push(range.clone());
                    write.push(range);
                }
            }
        }
        Self { read: Ranges::merge(read), write: Ranges::merge(write) }
    }

    /// Whether all of `key..range_end` is permitted; both as a request names them.
    pub fn allow(&self, key: &[u8], range_end: &[u8], access: Access) -> bool {
        match access {
            Access::Read => self.read.hold(key, range_end),
            Access::Write => self.write.hold(key, range_end),
        }
    }
}

/// `end`: the first key above; `None` without end.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Range {
    start: Bytes,
    end: Option<Bytes>,
}

impl Range {
    fn granted(permission: &authpb::Permission) -> Self {
        let end = match permission.range_end.as_ref() {
            [] => Some(just_above(&permission.key)),
            [0] => None,
            _ => Some(permission.range_end.clone()),
        };
        Self { start: permission.key.clone(), end }
    }
}

fn just_above(key: &[u8]) -> Bytes {
    let mut above = Vec::with_capacity(key.len() + 1);
    above.extend_from_slice(key);
    above.push(0);
    above.into()
}

/// In order of their start; no two touch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Ranges(Vec<Range>);

impl Ranges {
    fn merge(mut ranges: Vec<Range>) -> Self {
        ranges.sort_by(|a, b| a.start.cmp(&b.start));
        let mut merged: Vec<Range> = Vec::with_capacity(ranges.len());
        for range in ranges {
            let Some(last) = merged.last_mut() else {
                merged.push(range);
                continue;
            };
            match (&last.end, &range.end) {
                (None, _) => {}
                (Some(end), _) if *end < range.start => merged.push(range),
                (Some(_), None) => last.end = None,
                (Some(end), Some(further)) => {
                    if end < further {
                        last.end = range.end;
                    }
                }
            }
        }
        Self(merged)
    }

    fn hold(&self, key: &[u8], range_end: &[u8]) -> bool {
        let after = self.0.partition_point(|range| range.start.as_ref() <= key);
        let Some(range) = after.checked_sub(1).and_then(|at| self.0.get(at)) else { return false };
        let Some(end) = &range.end else { return true };
        match range_end {
            [] => key < end.as_ref(),
            [0] => false,
            // An inverted range holds no key; it is permitted where its first one is.
            _ => key < end.as_ref() && range_end <= end.as_ref(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn granted(grants: &[(&'static [u8], &'static [u8], Type)]) -> Permissions {
        let grants: Vec<authpb::Permission> = grants
            .iter()
            .map(|(key, end, kind)| authpb::Permission {
                perm_type: *kind as i32,
                key: Bytes::from_static(key),
                range_end: Bytes::from_static(end),
            })
            .collect();
        Permissions::merge(&grants)
    }

    #[test]
    fn a_request_is_held_by_the_union_of_what_was_granted() {
        let grants = granted(&[
            (b"a", b"c", Type::Read),
            (b"c", b"e", Type::Readwrite),
            (b"x", b"", Type::Read),
            (b"p", b"\0", Type::Write),
        ]);
        // Key, end, may read, may write.
        let table: [(&[u8], &[u8], bool, bool); 14] = [
            (b"a", b"", true, false),
            (b"a", b"e", true, false),
            (b"c", b"e", true, true),
            (b"b", b"ca", true, false),
            (b"a", b"ea", false, false),
            (b"0", b"b", false, false),
            (b"e", b"", false, false),
            (b"x", b"", true, true),
            (b"x", b"x\0", true, true),
            (b"x", b"y", false, true),
            (b"x\0", b"", false, true),
            (b"p", b"\0", false, true),
            (b"a", b"\0", false, false),
            (b"", b"", false, false),
        ];
        for (key, end, read, write) in table {
            assert_eq!(grants.allow(key, end, Access::Read), read, "read {key:?} {end:?}");
            assert_eq!(grants.allow(key, end, Access::Write), write, "write {key:?} {end:?}");
        }
    }

    #[test]
    fn the_merge_agrees_with_a_look_at_each_grant() {
        // Every pair of grants over a small alphabet, every request: the union, key by key.
        let keys: [&[u8]; 5] = [b"a", b"b", b"c", b"d", b"e"];
        let mut ranges = Vec::new();
        for (at, start) in keys.iter().enumerate() {
            ranges.push((*start, b"\0".as_slice()));
            ranges.push((*start, b"".as_slice()));
            ranges.extend(keys.iter().skip(at + 1).map(|end| (*start, *end)));
        }
        let holds = |(start, end): (&[u8], &[u8]), key: &[u8]| match end {
            [] => start == key,
            [0] => start <= key,
            _ => start <= key && key < end,
        };
        for first in &ranges {
            for second in &ranges {
                let grants = Permissions::merge(&[first, second].map(|(key, end)| authpb::Permission {
                    perm_type: Type::Read as i32,
                    key: Bytes::copy_from_slice(key),
                    range_end: Bytes::copy_from_slice(end),
                }));
                for key in keys {
                    assert_eq!(
                        grants.allow(key, b"", Access::Read),
                        holds(*first, key) || holds(*second, key),
                        "{first:?} {second:?} {key:?}"
                    );
                }
            }
        }
    }
}
