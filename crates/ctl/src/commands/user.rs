//! `user`: who may log in, with which password, in which roles.
//!
//! None of these commands has a deadline.

use std::io::Read;

use dolmen_cli::{Call, Command, Failure, Flag, print, words};
use dolmen_proto::authpb::UserAddOptions;
use dolmen_proto::etcdserverpb as pb;

use crate::connect::{self, Limit};
use crate::hints;
use crate::output::write_stdout;
use crate::process::{Unbuffered, ask_password};
use crate::tool::AUTHENTICATION;

/// `user`
pub static COMMAND: Command = Command {
    usage: "user <subcommand>",
    short: "User related commands. Use `etcdctl user --help` to see subcommands",
    long: "User related commands",
    group: AUTHENTICATION,
    commands: &[&ADD, &DELETE, &GET, &LIST, &PASSWD, &GRANT_ROLE, &REVOKE_ROLE],
    ..Command::NEW
};

static ADD: Command = Command {
    usage: "add <user name or user:password> [options]",
    short: "Adds a new user",
    flags: &[
        Flag::boolean("interactive", "Read password from stdin instead of interactive terminal").default("true"),
        Flag::text("new-user-password", "", "Supply password from the command line flag"),
        Flag::boolean("no-password", "Create a user without password (CN based auth only)"),
    ],
    run: Some(add),
    ..Command::NEW
};

static DELETE: Command =
    Command { usage: "delete <user name>", short: "Deletes a user", run: Some(delete), ..Command::NEW };

static GET: Command = Command {
    usage: "get <user name> [options]",
    short: "Gets detailed information of a user",
    flags: &[Flag::boolean("detail", "Show permissions of roles granted to the user")],
    run: Some(get),
    ..Command::NEW
};

static LIST: Command = Command { usage: "list", short: "Lists all users", run: Some(list), ..Command::NEW };

static PASSWD: Command = Command {
    usage: "passwd <user name> [options]",
    short: "Changes password of user",
    flags: &[Flag::boolean("interactive", "If true, read password from stdin instead of interactive terminal")
        .default("true")],
    run: Some(passwd),
    ..Command::NEW
};

static GRANT_ROLE: Command = Command {
    usage: "grant-role <user name> <role name>",
    short: "Grants a role to a user",
    run: Some(grant_role),
    ..Command::NEW
};

static REVOKE_ROLE: Command = Command {
    usage: "revoke-role <user name> <role name>",
    short: "Revokes a role from a user",
    run: Some(revoke_role),
    ..Command::NEW
};

/// The one argument of most commands here.
fn user_name(call: &Call) -> Result<&String, Failure> {
    match call.args() {
        [name] => Ok(name),
        _ => {
            let command = call.command().name();
            Err(Failure::bad_args(format!("user {command} command requires user name as its argument")))
        }
    }
}

fn add(call: &Call) -> Result<(), Failure> {
    let typed = user_name(call)?;
    let from_flag = call.text("new-user-password");
    let (name, password) = if call.boolean("no-password") {
        (&typed[..], String::new())
    } else if !from_flag.is_empty() {
        (&typed[..], from_flag.to_owned())
    } else if let Some((name, password)) = typed.split_once(':') {
        if name.is_empty() {
            return Err(Failure::bad_args("empty user name is not allowed"));
        }
        (name, password.to_owned())
    } else {
        (&typed[..], new_password(call, typed)?)
    };
    let options = Some(UserAddOptions { no_password: call.boolean("no-password") });
    connect::run(call, Limit::None, async |link| {
        let request = pb::AuthUserAddRequest { name: name.to_owned(), password, options, ..Default::default() };
        let response = link.client.user_add(request).await.map_err(|e| hints::failure(&e))?;
        link.printer.user_add(&words::bytes(name), &response)
    })
}

/// A password for `name`: asked for twice, or with `--interactive=false` the next word of stdin.
fn new_password(call: &Call, name: &str) -> Result<String, Failure> {
    if call.boolean("interactive") { confirmed_password(name, ask_password) } else { Ok(word_of_stdin()) }
}

/// Asks for the password twice.
fn confirmed_password(name: &str, ask: impl Fn(&str) -> Result<String, Failure>) -> Result<String, Failure> {
    let ask = |prompt: String| {
        ask(&prompt).map_err(|failure| {
            Failure::bad_args(format!("failed to ask password: {}", failure.text().unwrap_or_default()))
        })
    };
    let password = ask(format!("Password of {name}: "))?;
    if password.is_empty() {
        return Err(Failure::bad_args("empty password"));
    }
    if ask(format!("Type password of {name} again for confirmation: "))? != password {
        return Err(Failure::bad_args("given passwords are different"));
    }
    Ok(password)
}

fn word_of_stdin() -> String {
    let word = Unbuffered::stdin().map(first_word).unwrap_or_default();
    words::from_bytes(word)
}

/// The first word of the first line, or nothing: what is in it up to white space, blanks before it skipped. Read byte by
/// byte, so that what follows stays.
fn first_word(mut input: impl Read) -> Vec<u8> {
    let mut word = Vec::new();
    let mut byte = [0];
    while matches!(input.read(&mut byte), Ok(1)) {
        match byte[0] {
            b'\n' => break,
            b' ' | b'\t' | b'\r' | 0x0b | 0x0c if word.is_empty() => {}
            b' ' | b'\t' | b'\r' | 0x0b | 0x0c => break,
            other => word.push(other),
        }
    }
    word
}

fn delete(call: &Call) -> Result<(), Failure> {
    let name = user_name(call)?;
    connect::run(call, Limit::None, async |link| {
        let request = pb::AuthUserDeleteRequest { name: name.clone() };
        let response = link.client.user_delete(request).await.map_err(|e| hints::failure(&e))?;
        link.printer.user_delete(&words::bytes(name), &response)
    })
}

fn get(call: &Call) -> Result<(), Failure> {
    let name = user_name(call)?;
    let detail = call.boolean("detail");
    connect::run(call, Limit::None, async |link| {
        let request = pb::AuthUserGetRequest { name: name.clone() };
        let response = link.client.user_get(request).await.map_err(|e| hints::failure(&e))?;
        if !detail {
            return link.printer.user_get(&words::bytes(name), &response);
        }
        print(format!("User: {name}\n"));
        for role in response.roles {
            write_stdout(b"\n")?;
            let request = pb::AuthRoleGetRequest { role: role.clone() };
            let response = link.client.role_get(request).await.map_err(|e| hints::failure(&e))?;
            link.printer.role_get(role.as_bytes(), &response)?;
        }
        Ok(())
    })
}

fn list(call: &Call) -> Result<(), Failure> {
    if !call.args().is_empty() {
        return Err(Failure::bad_args("user list command requires no arguments"));
    }
    connect::run(call, Limit::None, async |link| {
        let response = link.client.user_list(pb::AuthUserListRequest {}).await.map_err(|e| hints::failure(&e))?;
        link.printer.user_list(&response)
    })
}

fn passwd(call: &Call) -> Result<(), Failure> {
    let name = user_name(call)?;
    let password = new_password(call, name)?;
    connect::run(call, Limit::None, async |link| {
        let request = pb::AuthUserChangePasswordRequest { name: name.clone(), password, ..Default::default() };
        let response = link.client.user_change_password(request).await.map_err(|e| hints::failure(&e))?;
        link.printer.user_change_password(&response)
    })
}

fn grant_role(call: &Call) -> Result<(), Failure> {
    let [user, role] = call.args() else {
        return Err(Failure::bad_args("user grant command requires user name and role name as its argument"));
    };
    connect::run(call, Limit::None, async |link| {
        let request = pb::AuthUserGrantRoleRequest { user: user.clone(), role: role.clone() };
        let response = link.client.user_grant_role(request).await.map_err(|e| hints::failure(&e))?;
        link.printer.user_grant_role(&words::bytes(user), &words::bytes(role), &response)
    })
}

fn revoke_role(call: &Call) -> Result<(), Failure> {
    let [user, role] = call.args() else {
        return Err(Failure::bad_args("user revoke-role requires user name and role name as its argument"));
    };
    connect::run(call, Limit::None, async |link| {
        let request = pb::AuthUserRevokeRoleRequest { name: user.clone(), role: role.clone() };
        let response = link.client.user_revoke_role(request).await.map_err(|e| hints::failure(&e))?;
        link.printer.user_revoke_role(&words::bytes(user), &words::bytes(role), &response)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    #[test]
    fn a_word_ends_at_white_space_and_a_line_without_one_is_empty() {
        let table: &[(&str, &str)] = &[
            ("secret\n", "secret"),
            ("secret", "secret"),
            (" \t secret word\n", "secret"),
            ("\nsecret\n", ""),
            ("   \n", ""),
            ("", ""),
            ("secret\r\n", "secret"),
        ];
        for (input, word) in table {
            assert_eq!(first_word(input.as_bytes()), word.as_bytes(), "{input:?}");
        }
    }

    #[test]
    fn a_password_is_confirmed() {
        let table: &[(&[&str], Result<&str, &str>)] = &[
            (&["pw", "pw"], Ok("pw")),
            (&["pw", "other"], Err("given passwords are different")),
            (&[""], Err("empty password")),
            (&[], Err("failed to ask password: closed")),
            (&["pw"], Err("failed to ask password: closed")),
        ];
        for (answers, expected) in table {
            let prompts = RefCell::new(Vec::new());
            let ask = |prompt: &str| {
                prompts.borrow_mut().push(prompt.to_owned());
                let answer = answers.get(prompts.borrow().len() - 1);
                answer.map(|text| (*text).to_owned()).ok_or_else(|| Failure::error("closed"))
            };
            let found = confirmed_password("me", ask);
            let found = found.as_ref().map(String::as_str).map_err(|failure| failure.text().unwrap_or_default());
            assert_eq!(found, *expected);
            let all = ["Password of me: ", "Type password of me again for confirmation: "];
            assert_eq!(*prompts.borrow(), all[..prompts.borrow().len()]);
        }
    }
}
