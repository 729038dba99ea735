//! A request's fields in one buffer.

/// The fields of a request, pseudo-fields (`:path`) among them, in the order in which they came.
///
/// One allocation, whatever their number: most are never looked at.
#[derive(Clone, Debug, Default)]
pub struct Head {
    /// For each field: the lengths of name and value, 4 bytes each, then both.
    bytes: Vec<u8>,
    /// What HTTP/2 counts, of fields that were not stored as well.
    list_size: usize,
}

/// What most requests need.
const USUAL: usize = 320;
/// What HTTP/2 counts for a field beside its name and value.
const FIELD_OVERHEAD: usize = 32;

impl Head {
    /// Adds a field; beyond `limit`, only counts it.
    pub(crate) fn push(&mut self, name: &[u8], value: &[u8], limit: usize) {
        self.list_size += name.len() + value.len() + FIELD_OVERHEAD;
        if self.list_size > limit {
            return;
        }
        if self.bytes.capacity() == 0 {
            self.bytes.reserve(USUAL);
        }
        for len in [name.len(), value.len()] {
            // Within the limit, which a peer is told in 32 bits.
            self.bytes.extend_from_slice(&(len as u32).to_ne_bytes());
        }
        self.bytes.extend_from_slice(name);
        self.bytes.extend_from_slice(value);
    }

    /// Bytes as `SETTINGS_MAX_HEADER_LIST_SIZE` counts them.
    pub(crate) fn list_size(&self) -> usize {
        self.list_size
    }

    /// Name and value of each field. Names are in lower case.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        let mut rest = &self.bytes[..];
        std::iter::from_fn(move || {
            let (name_len, after) = rest.split_first_chunk::<4>()?;
            let (value_len, after) = after.split_first_chunk::<4>()?;
            let (name, after) = after.split_at(u32::from_ne_bytes(*name_len) as usize);
            let (value, after) = after.split_at(u32::from_ne_bytes(*value_len) as usize);
            rest = after;
            Some((name, value))
        })
    }

    /// The first field of this name.
    pub fn get(&self, name: &str) -> Option<&[u8]> {
        self.iter().find(|(known, _)| *known == name.as_bytes()).map(|(_, value)| value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_by_name_and_counted_as_http2_does() {
        let mut head = Head::default();
        assert_eq!((head.get("a"), head.list_size()), (None, 0));
        for (name, value) in [(":path", "/x"), ("a", ""), ("a", "2"), ("b", "3")] {
            head.push(name.as_bytes(), value.as_bytes(), 1000);
        }
        assert_eq!(head.get(":path"), Some(&b"/x"[..]));
        assert_eq!(head.get("a"), Some(&b""[..]));
        assert_eq!(head.get("b"), Some(&b"3"[..]));
        assert_eq!(head.iter().count(), 4);
        assert_eq!(head.list_size(), 5 + 2 + 1 + 2 + 2 + 4 * 32);
        head.push(b"long", &[b'x'; 1000], 1000);
        assert!(head.get("long").is_none() && head.list_size() > 1000);
    }
}
