//! What etcd 3.5 still writes into its log in the form of its version 2: a member's attributes and the cluster version.
//! Taken as the requests that later releases write instead.

use bytes::Bytes;
use dolmen_proto::etcdserverpb::InternalRaftRequest;
use dolmen_proto::membershippb::{Attributes, ClusterMemberAttrSetRequest, ClusterVersionSetRequest};
use prost::Message;

use crate::Member;

/// The part of version 2's `etcdserverpb.Request` that matters.
#[derive(Clone, PartialEq, Message)]
struct V2Request {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(string, tag = "2")]
    method: String,
    #[prost(string, tag = "3")]
    path: String,
    #[prost(string, tag = "4")]
    val: String,
}

/// Decodes what a normal entry of the log asks for, in either form.
///
/// # Errors
/// The bytes are neither; says why.
pub fn decode_request(data: &Bytes) -> Result<InternalRaftRequest, String> {
    match InternalRaftRequest::decode(data.clone()) {
        Ok(request) => Ok(request),
        Err(error) => v2_request(data).ok_or_else(|| error.to_string()),
    }
}

fn v2_request(data: &[u8]) -> Option<InternalRaftRequest> {
    let old = V2Request::decode(data).ok()?;
    if old.method != "PUT" {
        return None;
    }
    let mut request = InternalRaftRequest { id: old.id, ..InternalRaftRequest::default() };
    if old.path == "/0/version" {
        request.cluster_version_set = Some(ClusterVersionSetRequest { ver: old.val });
        return Some(request);
    }
    let hex = old.path.strip_prefix("/0/members/")?.strip_suffix("/attributes")?;
    let member_id = u64::from_str_radix(hex, 16).ok()?;
    let mut fields: serde_json::Value = serde_json::from_str(&old.val).ok()?;
    fields.as_object_mut()?.insert("id".into(), member_id.into());
    let member: Member = serde_json::from_value(fields).ok()?;
    let attributes = Attributes { name: member.name, client_urls: member.client_urls };
    request.cluster_member_attr_set =
        Some(ClusterMemberAttrSetRequest { member_id, member_attributes: Some(attributes) });
    Some(request)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(path: &str, val: &str) -> Bytes {
        V2Request { id: 7, method: "PUT".into(), path: path.into(), val: val.into() }.encode_to_vec().into()
    }

    #[test]
    fn version_2_requests_become_those_that_took_their_place() {
        let request = decode_request(&put("/0/version", "3.5.0")).expect("known");
        assert_eq!((request.id, request.cluster_version_set.expect("set").ver), (7, "3.5.0".to_owned()));
        let attributes = r#"{"name":"n","clientURLs":["http://a:1"]}"#;
        let request = decode_request(&put("/0/members/8e9e05c52164694d/attributes", attributes)).expect("known");
        let set = request.cluster_member_attr_set.expect("set");
        assert_eq!(set.member_id, 0x8e9e_05c5_2164_694d);
        let attributes = set.member_attributes.expect("set");
        assert_eq!((attributes.name.as_str(), attributes.client_urls.len()), ("n", 1));
    }

    #[test]
    fn other_version_2_requests_are_not_understood() {
        for data in [put("/1/some/key", "v"), put("/0/members/x/attributes", "{}"), put("/0/members/1/attributes", "[")]
        {
            assert!(decode_request(&data).is_err());
        }
        let mut get = V2Request { id: 7, method: "GET".into(), path: "/0/version".into(), val: String::new() };
        assert!(decode_request(&get.encode_to_vec().into()).is_err());
        get.path.clear();
        assert!(decode_request(&InternalRaftRequest::default().encode_to_vec().into()).is_ok());
    }
}
