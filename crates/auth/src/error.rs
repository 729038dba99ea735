/// Why a change or a request is refused; `Display` is etcd's text without its prefix. Every member computes the same one.
///
/// Source: etcd `server/auth/store.go`, `api/v3rpc/rpctypes/error.go`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AuthError {
    #[error("root user does not exist")]
    RootUserNotExist,
    #[error("root user does not have root role")]
    RootRoleNotExist,
    #[error("user name already exists")]
    UserExists,
    #[error("user name is empty")]
    UserEmpty,
    #[error("user name not found")]
    UserNotFound,
    #[error("role name already exists")]
    RoleExists,
    #[error("role name not found")]
    RoleNotFound,
    #[error("role name is empty")]
    RoleEmpty,
    /// Of a login, and deliberately one answer for a wrong name and a wrong password.
    #[error("authentication failed, invalid user ID or password")]
    AuthFailed,
    #[error("permission not given")]
    PermissionNotGiven,
    #[error("permission denied")]
    PermissionDenied,
    #[error("role is not granted to the user")]
    RoleNotGranted,
    #[error("permission is not granted to the role")]
    PermissionNotGranted,
    #[error("authentication is not enabled")]
    NotEnabled,
    #[error("invalid auth token")]
    InvalidToken,
    #[error("invalid auth management")]
    InvalidManagement,
    #[error("revision of auth store is old")]
    OldRevision,
    /// Has no code in etcd either: `Unknown`, with this text and the prefix `auth: `.
    #[error("authentication failed, password was given for no password user")]
    NoPasswordUser,
}
