//! Who calls: a token, or the common name of a client's certificate, turned into a user.
//!
//! Looked at only while authentication is on. A token counts before a certificate, as in etcd, and a wrong one is refused even
//! where the certificate would do.

use dolmen_auth::{Auth, AuthError, Identity, Tokens};
use dolmen_env::RealClock;
use dolmen_node::Request;
use dolmen_types::LeaseId;

use crate::call::Call;
use crate::methods::Access;
use crate::status::{self, Status};

impl Call {
    /// Whose call this is, by the users of now; `None`: nobody's, or nobody is asked.
    ///
    /// # Errors
    /// A token that is not known, or no longer.
    pub async fn identify(&self) -> Result<Option<Identity>, Status> {
        let auth = self.local.node().auth();
        if !auth.is_enabled() {
            return Ok(None);
        }
        let Some(token) = &self.caller.token else { return Ok(self.certified(&auth)) };
        let token = token.to_str().map_err(|_| status::INVALID_AUTH_TOKEN)?;
        let token = token.strip_prefix("Bearer ").unwrap_or(token);
        let tokens = self.local.node().tokens();
        let mut user = tokens.user_of(token, RealClock::mono());
        let assigned = Tokens::index_of(token).unwrap_or(0);
        if user.is_none() && assigned > self.local.node().status().applied {
            // Another member answered the login; here its entry is still on the way.
            self.local.read_index(self.deadline).await?;
            user = tokens.user_of(token, RealClock::mono());
        }
        let user = user.ok_or(status::INVALID_AUTH_TOKEN)?;
        // A simple token carries no revision: it is as good as its user is now.
        Ok(Some(Identity { user: user.as_ref().to_owned(), revision: self.local.node().auth().revision() }))
    }

    fn certified(&self, auth: &Auth) -> Option<Identity> {
        if !self.local.config().client_cert_auth {
            return None;
        }
        let name = self.transport.common_name.clone()?;
        Some(Identity { user: name, revision: auth.revision() })
    }

    /// Refuses whoever the method is not for; what depends on the request is left to its handler.
    ///
    /// # Errors
    /// [`Call::identify`]'s; nobody's call; another user's than root's.
    pub async fn authorise(&self) -> Result<(), Status> {
        let access = self.method.info().access;
        if matches!(access, Access::Anyone | Access::Keys) || !self.local.node().auth().is_enabled() {
            return Ok(());
        }
        let who = self.identify().await?;
        let auth = self.local.node().auth();
        match access {
            Access::Root => auth.check_admin(who.as_ref())?,
            _ => auth.check_known(who.as_ref())?,
        }
        Ok(())
    }

    /// Lets a read in; returns whose it is.
    ///
    /// # Errors
    /// [`Call::identify`]'s; keys that this user may not read.
    pub async fn may_read(&self, key: &[u8], range_end: &[u8]) -> Result<Option<Identity>, Status> {
        let who = self.identify().await?;
        self.local.node().auth().check_range(who.as_ref(), key, range_end, dolmen_auth::Access::Read)?;
        Ok(who)
    }

    /// Lets a call in that concerns the keys of a lease, or of all leases.
    ///
    /// # Errors
    /// [`Call::identify`]'s; a key among them that this user may not read or write.
    pub async fn may_on_lease(&self, lease: Option<LeaseId>, access: dolmen_auth::Access) -> Result<(), Status> {
        if !self.local.node().auth().is_enabled() {
            return Ok(());
        }
        let who = self.identify().await?;
        let check = Request::LeaseCheck { who, lease, access };
        self.local.done(check, self.deadline, status::DEADLINE_EXCEEDED).await
    }

    /// Passes on what `who` was permitted to read, unless users have changed meanwhile: it may be more than is permitted now.
    ///
    /// # Errors
    /// An identity that is old by now.
    pub fn still<T>(&self, who: Option<&Identity>, read: T) -> Result<T, Status> {
        match who {
            Some(who) if who.revision != 0 && who.revision != self.local.node().auth().revision() => {
                Err(AuthError::OldRevision.into())
            }
            _ => Ok(read),
        }
    }
}
