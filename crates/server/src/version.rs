//! What this server calls itself: etcd's version wherever clients and peers ask, and its own besides.

/// The etcd release whose behaviour this server has.
pub const ETCD: &str = "3.7.3";

/// The commit it was built from; a build outside of a repository has none.
pub const COMMIT: Option<&str> = option_env!("DOLMEN_COMMIT");

/// `etcd --version`, line by line as etcd prints it; the last line is our own.
pub fn text() -> String {
    let architecture = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    format!(
        "etcd Version: {ETCD}\nGit SHA: {}\nGo Version: none\nGo OS/Arch: {}/{architecture}\nDolmen Version: {}\n",
        COMMIT.unwrap_or("Not provided (built outside of a repository, or for development)"),
        std::env::consts::OS,
        env!("CARGO_PKG_VERSION")
    )
}
