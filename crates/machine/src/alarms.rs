//! Alarms: which are raised, and what they refuse.

use std::collections::BTreeSet;

use bytes::Bytes;
use dolmen_proto::etcdserverpb::alarm_request::AlarmAction;
use dolmen_proto::etcdserverpb::{AlarmMember, AlarmRequest, AlarmType};
use dolmen_revlog::{Table, TableOp, Tables};
use dolmen_types::MemberId;
use prost::Message;

use crate::ApplyError;

/// What a request does to the size of the store.
#[derive(Clone, Copy)]
pub(crate) enum Writes {
    Grows,
    Shrinks,
}

/// The alarms that are raised.
#[derive(Default)]
pub(crate) struct Alarms {
    /// (member, alarm type as on the wire).
    raised: BTreeSet<(MemberId, i32)>,
}

impl Alarms {
    /// Reads what [`Alarms::apply`], or an imported etcd database, wrote.
    pub(crate) fn load(tables: &Tables) -> Result<Self, prost::DecodeError> {
        let mut loaded = Self::default();
        for (key, _) in tables.iter(Table::Alarm) {
            let alarm = AlarmMember::decode(key.clone())?;
            loaded.raised.insert((alarm.member_id, alarm.alarm));
        }
        Ok(loaded)
    }

    /// Whether a change of the key space or of leases may run: CORRUPT refuses all, NOSPACE those that make the store
    /// larger.
    pub(crate) fn admit(&self, writes: Writes) -> Result<(), ApplyError> {
        let raised = |alarm: AlarmType| self.raised.iter().any(|(_, raised)| *raised == alarm as i32);
        if self.raised.is_empty() {
            Ok(())
        } else if raised(AlarmType::Corrupt) {
            Err(ApplyError::Corrupt)
        } else if matches!(writes, Writes::Grows) && raised(AlarmType::Nospace) {
            Err(ApplyError::NoSpace)
        } else {
            Ok(())
        }
    }

    /// Carries out a request; returns the alarms it names in its answer.
    pub(crate) fn apply(&mut self, request: &AlarmRequest, ops: &mut Vec<TableOp>) -> Vec<AlarmMember> {
        let member = AlarmMember { member_id: request.member_id, alarm: request.alarm };
        let place = (request.member_id, request.alarm);
        let none = request.alarm == AlarmType::None as i32;
        let mut op = |value: Option<Bytes>| {
            ops.push(TableOp { table: Table::Alarm, key: member.encode_to_vec().into(), value });
        };
        match AlarmAction::try_from(request.action) {
            Ok(AlarmAction::Get) => self.raised(request.alarm),
            Ok(AlarmAction::Activate) if !none => {
                if self.raised.insert(place) {
                    op(Some(Bytes::new()));
                }
                vec![member]
            }
            Ok(AlarmAction::Deactivate) if self.raised.remove(&place) => {
                op(None);
                vec![member]
            }
            _ => Vec::new(),
        }
    }

    /// Raised alarms of one type, or all for `NONE`.
    pub(crate) fn raised(&self, alarm: i32) -> Vec<AlarmMember> {
        self.raised
            .iter()
            .filter(|(_, raised)| alarm == AlarmType::None as i32 || alarm == *raised)
            .map(|(member_id, alarm)| AlarmMember { member_id: *member_id, alarm: *alarm })
            .collect()
    }
}
