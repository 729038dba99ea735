//! Users: logins, tokens, and who may do what, over real connections.

use std::time::Duration;

use bytes::Bytes;
use dolmen_api::{Config, Mode, status};
use dolmen_proto::authpb::{Permission, UserAddOptions, permission};
use dolmen_proto::etcdserverpb::watch_request::RequestUnion;
use dolmen_proto::etcdserverpb::*;
use prost::Message;

use crate::client::{Client, Failed, framed};
use crate::member::TestMember;

const RANGE: &str = "/etcdserverpb.KV/Range";
const PUT: &str = "/etcdserverpb.KV/Put";
const TXN: &str = "/etcdserverpb.KV/Txn";
const LOGIN: &str = "/etcdserverpb.Auth/Authenticate";

fn failed(status: &status::Status) -> Failed {
    Failed { code: status.code as u32, message: status.message.to_string() }
}

fn put(key: &str) -> PutRequest {
    PutRequest { key: Bytes::from(key.to_owned()), value: "v".into(), ..Default::default() }
}

fn get(key: &str, end: &str) -> RangeRequest {
    let (key, range_end) = (Bytes::from(key.to_owned()), Bytes::from(end.to_owned()));
    RangeRequest { key, range_end, serializable: true, ..Default::default() }
}

fn login(name: &str, password: &str) -> AuthenticateRequest {
    AuthenticateRequest { name: name.into(), password: password.into() }
}

/// A cluster with root, alice (who may read and write `a..b`) and bob (who has no password), all of it switched on.
async fn with_users(client: &Client) {
    let auth = |method: &str| format!("/etcdserverpb.Auth/{method}");
    for name in ["root", "alice"] {
        let add = AuthUserAddRequest { name: name.into(), password: format!("{name}-pw"), ..Default::default() };
        client.unary::<AuthUserAddResponse>(&auth("UserAdd"), &add).await.unwrap();
    }
    let options = Some(UserAddOptions { no_password: true });
    let add = AuthUserAddRequest { name: "bob".into(), options, ..Default::default() };
    client.unary::<AuthUserAddResponse>(&auth("UserAdd"), &add).await.unwrap();
    let grant = AuthUserGrantRoleRequest { user: "root".into(), role: "root".into() };
    client.unary::<AuthUserGrantRoleResponse>(&auth("UserGrantRole"), &grant).await.unwrap();
    client.unary::<AuthRoleAddResponse>(&auth("RoleAdd"), &AuthRoleAddRequest { name: "r".into() }).await.unwrap();
    let perm_type = permission::Type::Readwrite as i32;
    let perm = Some(Permission { perm_type, key: "a".into(), range_end: "b".into() });
    let grant = AuthRoleGrantPermissionRequest { name: "r".into(), perm };
    client.unary::<AuthRoleGrantPermissionResponse>(&auth("RoleGrantPermission"), &grant).await.unwrap();
    let grant = AuthUserGrantRoleRequest { user: "alice".into(), role: "r".into() };
    client.unary::<AuthUserGrantRoleResponse>(&auth("UserGrantRole"), &grant).await.unwrap();
    client.unary::<AuthEnableResponse>(&auth("AuthEnable"), &AuthEnableRequest {}).await.unwrap();
}

fn denied<T>() -> Result<T, Failed> {
    Err(failed(&status::PERMISSION_DENIED))
}

async fn token(client: &Client, name: &str) -> String {
    let login = login(name, &format!("{name}-pw"));
    client.unary::<AuthenticateResponse>(LOGIN, &login).await.unwrap().token
}

fn quick() -> Config {
    Config { bcrypt_cost: 4, ..Config::default() }
}

#[tokio::test]
async fn who_has_no_token_or_a_wrong_one_is_refused() {
    let member = TestMember::with(quick(), Mode::GrpcAndHttp);
    let client = Client::connect(member.address).await;
    with_users(&client).await;
    assert_eq!(client.unary::<PutResponse>(PUT, &put("a")).await, Err(failed(&status::USER_EMPTY)));
    assert_eq!(client.unary::<RangeResponse>(RANGE, &get("a", "")).await, Err(failed(&status::USER_EMPTY)));
    let status_path = "/etcdserverpb.Maintenance/Status";
    assert_eq!(client.unary::<StatusResponse>(status_path, &StatusRequest {}).await, Err(failed(&status::USER_EMPTY)));
    for wrong in ["abc.1", "abc", "", "abc.99999999999999999999", "Bearer x.y"] {
        let answer = client.unary_with::<PutResponse>(PUT, &[("token", wrong)], &put("a")).await;
        assert_eq!(answer, Err(failed(&status::INVALID_AUTH_TOKEN)), "{wrong:?}");
    }
    // Whether it is on, anybody may ask.
    let state: AuthStatusResponse = client.unary("/etcdserverpb.Auth/AuthStatus", &AuthStatusRequest {}).await.unwrap();
    assert_eq!((state.enabled, state.auth_revision), (true, 8));
    // One answer for a wrong name and a wrong password.
    for wrong in [login("alice", "x"), login("nobody", "x"), login("", "")] {
        let answer = client.unary::<AuthenticateResponse>(LOGIN, &wrong).await;
        assert_eq!(answer, Err(failed(&status::AUTH_FAILED)), "{wrong:?}");
    }
    let answer = client.unary::<AuthenticateResponse>(LOGIN, &login("bob", "")).await;
    assert_eq!(answer, Err(failed(&status::NO_PASSWORD_USER)));
}

#[tokio::test]
async fn a_user_may_what_its_roles_permit() {
    let member = TestMember::with(quick(), Mode::GrpcAndHttp);
    let client = Client::connect(member.address).await;
    with_users(&client).await;
    let (root, alice) = (token(&client, "root").await, token(&client, "alice").await);
    for key in ["a1", "z"] {
        client.unary_with::<PutResponse>(PUT, &[("token", &root)], &put(key)).await.unwrap();
    }
    let as_alice = [("authorization", format!("Bearer {alice}"))];
    let as_alice: Vec<(&str, &str)> = as_alice.iter().map(|(name, value)| (*name, value.as_str())).collect();
    client.unary_with::<PutResponse>(PUT, &as_alice, &put("a2")).await.unwrap();
    assert_eq!(client.unary_with::<PutResponse>(PUT, &as_alice, &put("b")).await, denied());
    let read: RangeResponse = client.unary_with(RANGE, &as_alice, &get("a", "b")).await.unwrap();
    assert_eq!(read.count, 2);
    for linearizable in [false, true] {
        let request = RangeRequest { serializable: !linearizable, ..get("a", "\0") };
        assert_eq!(client.unary_with::<RangeResponse>(RANGE, &as_alice, &request).await, denied());
    }
    // A transaction is refused for what either branch would do.
    let read = RequestOp { request: Some(request_op::Request::RequestRange(get("z", ""))) };
    let txn = TxnRequest { failure: vec![read], ..Default::default() };
    assert_eq!(client.unary_with::<TxnResponse>(TXN, &as_alice, &txn).await, denied());
    let write = RequestOp { request: Some(request_op::Request::RequestPut(put("z"))) };
    let txn = TxnRequest { failure: vec![write], ..Default::default() };
    assert_eq!(client.unary_with::<TxnResponse>(TXN, &as_alice, &txn).await, denied());

    // What is root's alone.
    let compact = CompactionRequest { revision: 2, ..Default::default() };
    let answer = client.unary_with::<CompactionResponse>("/etcdserverpb.KV/Compact", &as_alice, &compact).await;
    assert_eq!(answer, denied());
    let raise = AlarmRequest { action: 1, member_id: 1, alarm: 1 };
    let answer = client.unary_with::<AlarmResponse>("/etcdserverpb.Maintenance/Alarm", &as_alice, &raise).await;
    assert_eq!(answer, denied());
    let add = AuthUserAddRequest { name: "eve".into(), password: "x".into(), ..Default::default() };
    let answer = client.unary_with::<AuthUserAddResponse>("/etcdserverpb.Auth/UserAdd", &as_alice, &add).await;
    assert_eq!(answer, denied());
    // And what is one's own.
    let own = AuthUserGetRequest { name: "alice".into() };
    let roles: AuthUserGetResponse = client.unary_with("/etcdserverpb.Auth/UserGet", &as_alice, &own).await.unwrap();
    assert_eq!(roles.roles, ["r"]);

    // A permission that is gone counts at once, for a token of before too.
    let revoke = AuthUserRevokeRoleRequest { name: "alice".into(), role: "r".into() };
    let path = "/etcdserverpb.Auth/UserRevokeRole";
    client.unary_with::<AuthUserRevokeRoleResponse>(path, &[("token", &root)], &revoke).await.unwrap();
    assert_eq!(client.unary_with::<RangeResponse>(RANGE, &as_alice, &get("a", "b")).await, denied());
    // And a new password ends all of a user's tokens.
    let change = AuthUserChangePasswordRequest { name: "alice".into(), password: "new".into(), ..Default::default() };
    let path = "/etcdserverpb.Auth/UserChangePassword";
    client.unary_with::<AuthUserChangePasswordResponse>(path, &[("token", &root)], &change).await.unwrap();
    let answer = client.unary_with::<RangeResponse>(RANGE, &as_alice, &get("a", "b")).await;
    assert_eq!(answer, Err(failed(&status::INVALID_AUTH_TOKEN)));
    client.unary::<AuthenticateResponse>(LOGIN, &login("alice", "new")).await.unwrap();
}

#[tokio::test]
async fn leases_and_watches_are_for_who_may_their_keys() {
    let member = TestMember::with(quick(), Mode::GrpcAndHttp);
    let client = Client::connect(member.address).await;
    with_users(&client).await;
    let (root, alice) = (token(&client, "root").await, token(&client, "alice").await);
    let (as_root, as_alice) = ([("token", root.as_str())], [("token", alice.as_str())]);
    let grant = LeaseGrantRequest { id: 7, ttl: 600 };
    client.unary_with::<LeaseGrantResponse>("/etcdserverpb.Lease/LeaseGrant", &as_root, &grant).await.unwrap();
    client.unary_with::<PutResponse>(PUT, &as_root, &PutRequest { lease: 7, ..put("z") }).await.unwrap();
    let under = PutRequest { lease: 7, ..put("a") };
    assert_eq!(client.unary_with::<PutResponse>(PUT, &as_alice, &under).await, denied());
    let revoke = LeaseRevokeRequest { id: 7 };
    let path = "/etcdserverpb.Lease/LeaseRevoke";
    assert_eq!(client.unary_with::<LeaseRevokeResponse>(path, &as_alice, &revoke).await, denied());
    let path = "/etcdserverpb.Lease/LeaseTimeToLive";
    let ask = LeaseTimeToLiveRequest { id: 7, keys: true };
    assert_eq!(client.unary_with::<LeaseTimeToLiveResponse>(path, &as_alice, &ask).await, denied());
    let ask = LeaseTimeToLiveRequest { id: 7, keys: false };
    client.unary_with::<LeaseTimeToLiveResponse>(path, &as_alice, &ask).await.unwrap();
    let path = "/etcdserverpb.Lease/LeaseLeases";
    assert_eq!(client.unary_with::<LeaseLeasesResponse>(path, &as_alice, &LeaseLeasesRequest {}).await, denied());
    let (requests, answers) = client.stream("/etcdserverpb.Lease/LeaseKeepAlive", &as_alice).await;
    requests.send(framed(&LeaseKeepAliveRequest { id: 7 }.encode_to_vec())).unwrap();
    assert_eq!(answers.end().await, denied());

    let (requests, mut answers) = client.stream("/etcdserverpb.Watch/Watch", &as_alice).await;
    for (key, end) in [("a", ""), ("a", "\0"), ("z", "")] {
        let create = WatchCreateRequest {
            key: Bytes::from(key.to_owned()),
            range_end: Bytes::from(end.to_owned()),
            ..Default::default()
        };
        let request = WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) };
        requests.send(framed(&request.encode_to_vec())).unwrap();
        let answer: WatchResponse = answers.next().await.unwrap();
        assert!(answer.created);
        assert_eq!(answer.canceled, key == "z" || !end.is_empty(), "{key} {end:?}");
        if answer.canceled {
            let reason = "rpc error: code = PermissionDenied desc = etcdserver: permission denied";
            assert_eq!((answer.watch_id, answer.cancel_reason.as_str()), (-1, reason));
        }
    }
}

#[tokio::test]
async fn failed_logins_are_slowed_and_many_at_once_are_bounded() {
    let member = TestMember::with(quick(), Mode::GrpcAndHttp);
    let client = Client::connect(member.address).await;
    with_users(&client).await;
    let begin = std::time::Instant::now();
    for _ in 0..4 {
        let answer = client.unary::<AuthenticateResponse>(LOGIN, &login("alice", "x")).await;
        assert_eq!(answer, Err(failed(&status::AUTH_FAILED)));
    }
    // 0, then 50, 100 and 200 ms.
    assert!(begin.elapsed() >= Duration::from_millis(350), "{:?}", begin.elapsed());
    assert!(!token(&client, "alice").await.is_empty());
}
