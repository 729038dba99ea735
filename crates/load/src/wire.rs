//! Just enough of protobuf to look into a watch response without building it: a thousand watchers receive a million of
//! them in ten seconds, and reading them must not be what is measured.

/// A field's number and what it holds.
#[derive(Debug, PartialEq, Eq)]
pub enum Field<'a> {
    Number(u32, u64),
    Bytes(u32, &'a [u8]),
}

/// The fields of a message in turn; `None` inside where the bytes are no protobuf, and then no more.
pub struct Fields<'a>(pub &'a [u8]);

impl<'a> Iterator for Fields<'a> {
    type Item = Option<Field<'a>>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_none() {
            self.0 = &[];
        }
        Some(field)
    }
}

impl<'a> Fields<'a> {
    fn field(&mut self) -> Option<Field<'a>> {
        let tag = self.varint()?;
        let number = u32::try_from(tag >> 3).ok()?;
        match tag & 7 {
            0 => Some(Field::Number(number, self.varint()?)),
            2 => {
                let length = usize::try_from(self.varint()?).ok()?;
                let (bytes, rest) = self.0.split_at_checked(length)?;
                self.0 = rest;
                Some(Field::Bytes(number, bytes))
            }
            // etcd's messages have no other kinds.
            _ => None,
        }
    }

    fn varint(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let (byte, rest) = self.0.split_first()?;
            self.0 = rest;
            value |= u64::from(byte & 0x7f) << shift;
            if *byte < 0x80 {
                return Some(value);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use dolmen_proto::mvccpb::KeyValue;
    use prost::Message;

    use super::*;

    #[test]
    fn fields_are_those_of_the_message() {
        let kv = KeyValue { key: Bytes::from("k"), mod_revision: 300, value: Bytes::from("v"), ..Default::default() };
        let bytes = kv.encode_to_vec();
        let fields: Vec<_> = Fields(&bytes).collect();
        let wanted = [Field::Bytes(1, b"k"), Field::Number(3, 300), Field::Bytes(5, b"v")];
        assert_eq!(fields, wanted.map(Some));
    }

    #[test]
    fn junk_ends_it() {
        for junk in [&[0x0a, 0x05, 1][..], &[0x08], &[0x0d, 0, 0, 0, 0], &[0x80; 11]] {
            assert_eq!(Fields(junk).last(), Some(None));
        }
    }
}
