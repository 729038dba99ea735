//! `completion`: a script that teaches a shell etcdctl's commands and flags.

use dolmen_cli::{Args, Command};

use crate::tool::UTILITY;

/// `completion`
pub static COMMAND: Command = Command {
    usage: "completion [bash|zsh|fish|powershell]",
    short: "Generate completion script",
    long: r#"To load completions:

Bash:

  $ source <(etcdctl completion bash)

  # To load completions for each session, execute once:
  # Linux:
  $ etcdctl completion bash > /etc/bash_completion.d/etcdctl
  # macOS:
  $ etcdctl completion bash > /usr/local/etc/bash_completion.d/etcdctl

Zsh:

  # If shell completion is not already enabled in your environment,
  # you will need to enable it.  You can execute the following once:

  $ echo "autoload -U compinit; compinit" >> ~/.zshrc

  # To load completions for each session, execute once:
  $ etcdctl completion zsh > "${fpath[1]}/_etcdctl"

  # You will need to start a new shell for this setup to take effect.

fish:

  $ etcdctl completion fish | source

  # To load completions for each session, execute once:
  $ etcdctl completion fish > ~/.config/fish/completions/etcdctl.fish

PowerShell:

  PS> etcdctl completion powershell | Out-String | Invoke-Expression

  # To load completions for every new session, run:
  PS> etcdctl completion powershell > etcdctl.ps1
  # and source this file from your PowerShell profile.
"#,
    group: UTILITY,
    args: Args::ExactlyValid(1),
    valid_args: &["bash", "zsh", "fish", "powershell"],
    no_flags_in_usage: true,
    run: Some(dolmen_cli::completion::run),
    ..Command::NEW
};
