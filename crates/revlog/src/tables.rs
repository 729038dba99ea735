use std::collections::BTreeMap;

use bytes::Bytes;

/// The small tables beside the revisions. Each is one of etcd's buckets; the numbers are persisted and never change.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Table {
    Meta = 1,
    Cluster = 2,
    Members = 3,
    MembersRemoved = 4,
    Alarm = 5,
    Auth = 6,
    AuthUsers = 7,
    AuthRoles = 8,
    Lease = 9,
}

impl Table {
    /// Every table, in order of its number.
    pub const ALL: [Self; 9] = [
        Self::Meta,
        Self::Cluster,
        Self::Members,
        Self::MembersRemoved,
        Self::Alarm,
        Self::Auth,
        Self::AuthUsers,
        Self::AuthRoles,
        Self::Lease,
    ];

    /// The name of etcd's bucket.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Meta => "meta",
            Self::Cluster => "cluster",
            Self::Members => "members",
            Self::MembersRemoved => "members_removed",
            Self::Alarm => "alarm",
            Self::Auth => "auth",
            Self::AuthUsers => "authUsers",
            Self::AuthRoles => "authRoles",
            Self::Lease => "lease",
        }
    }

    /// The table of a bucket name, `None` for a bucket that is not a table (`key`) or not known.
    pub fn from_name(name: &[u8]) -> Option<Self> {
        Self::ALL.into_iter().find(|table| table.name().as_bytes() == name)
    }

    pub(crate) fn from_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|table| *table as u8 == number)
    }
}

/// One change of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableOp {
    pub table: Table,
    pub key: Bytes,
    /// `None` deletes; deleting what is not there is fine.
    pub value: Option<Bytes>,
}

/// All tables, in memory. They are small: thousands of entries, not millions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tables {
    rows: BTreeMap<Table, BTreeMap<Bytes, Bytes>>,
}

impl Tables {
    /// The value of one key.
    pub fn get(&self, table: Table, key: &[u8]) -> Option<&Bytes> {
        self.rows.get(&table)?.get(key)
    }

    /// A table's rows in key order.
    pub fn iter(&self, table: Table) -> impl Iterator<Item = (&Bytes, &Bytes)> {
        self.rows.get(&table).into_iter().flatten()
    }

    /// Rows in one table.
    pub fn len(&self, table: Table) -> usize {
        self.rows.get(&table).map_or(0, BTreeMap::len)
    }

    /// Whether no table has a row.
    pub fn is_empty(&self) -> bool {
        self.rows.values().all(BTreeMap::is_empty)
    }

    /// Carries out one change.
    pub fn apply(&mut self, op: TableOp) {
        let rows = self.rows.entry(op.table).or_default();
        match op.value {
            Some(value) => {
                rows.insert(op.key, value);
            }
            None => {
                rows.remove(&op.key);
            }
        }
        if rows.is_empty() {
            self.rows.remove(&op.table);
        }
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = (Table, &Bytes, &Bytes)> {
        self.rows.iter().flat_map(|(table, rows)| rows.iter().map(|(key, value)| (*table, key, value)))
    }
}
