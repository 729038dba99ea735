//! This member's name and client URLs, on their way into the log: it has joined once they stand there.

use dolmen_env::Mono;
use dolmen_proto::etcdserverpb::InternalRaftRequest;
use dolmen_proto::membershippb::{Attributes, ClusterMemberAttrSetRequest};

use super::Node;
use super::proposals::Origin;
use crate::start::FOUNDING_TERM;

pub(super) enum Publication {
    /// To be proposed, first or again, from then on. An earlier proposal stays good: whichever is applied ends it.
    Due(Mono),
    Done,
}

impl Node {
    /// Proposes this member's name and client URLs until the log says them.
    pub(super) fn publish_self(&mut self) {
        let Publication::Due(at) = self.publication else { return };
        if self.leadership.leader().is_none() || self.ending.is_near() {
            return;
        }
        // Not before our own log has left the term of the founding: a restart between the two would take this member for a
        // new one, and others for one that has been there.
        if self.log.durable_term() <= FOUNDING_TERM {
            return;
        }
        let config = &self.cx.config;
        let known = self.machine.membership().members.get(&config.member_id);
        if known.is_some_and(|m| m.name == config.name && m.client_urls == config.client_urls) {
            self.publication = Publication::Done;
            self.cx.shared.set_published();
            return;
        }
        if known.is_none() || self.cx.now < at {
            return;
        }
        let member_attributes = Attributes { name: config.name.clone(), client_urls: config.client_urls.clone() };
        let request = InternalRaftRequest {
            cluster_member_attr_set: Some(ClusterMemberAttrSetRequest {
                member_id: config.member_id,
                member_attributes: Some(member_attributes),
            }),
            ..InternalRaftRequest::default()
        };
        self.publication = Publication::Due(Mono(self.cx.now.0 + config.request_timeout_nanos()));
        self.proposals.own(&self.cx, Origin::Member, request);
    }
}
