//! `completion`

use dolmen_cli::{Args, Command, completion};

pub(crate) static COMMAND: Command = Command {
    usage: "completion [bash|zsh|fish|powershell]",
    short: "Generate completion script",
    long: LONG,
    no_flags_in_usage: true,
    valid_args: completion::SHELLS,
    args: Args::ExactlyValid(1),
    run: Some(completion::run),
    ..Command::NEW
};

const LONG: &str = "\
To load completions:\n\
\n\
Bash:\n\
\n\
\x20 $ source <(etcdutl completion bash)\n\
\n\
\x20 # To load completions for each session, execute once:\n\
\x20 # Linux:\n\
\x20 $ etcdutl completion bash > /etc/bash_completion.d/etcdutl\n\
\x20 # macOS:\n\
\x20 $ etcdutl completion bash > /usr/local/etc/bash_completion.d/etcdutl\n\
\n\
Zsh:\n\
\n\
\x20 # If shell completion is not already enabled in your environment,\n\
\x20 # you will need to enable it.  You can execute the following once:\n\
\n\
\x20 $ echo \"autoload -U compinit; compinit\" >> ~/.zshrc\n\
\n\
\x20 # To load completions for each session, execute once:\n\
\x20 $ etcdutl completion zsh > \"${fpath[1]}/_etcdutl\"\n\
\n\
\x20 # You will need to start a new shell for this setup to take effect.\n\
\n\
fish:\n\
\n\
\x20 $ etcdutl completion fish | source\n\
\n\
\x20 # To load completions for each session, execute once:\n\
\x20 $ etcdutl completion fish > ~/.config/fish/completions/etcdutl.fish\n\
\n\
PowerShell:\n\
\n\
\x20 PS> etcdutl completion powershell | Out-String | Invoke-Expression\n\
\n\
\x20 # To load completions for every new session, run:\n\
\x20 PS> etcdutl completion powershell > etcdutl.ps1\n\
\x20 # and source this file from your PowerShell profile.\n\
";
