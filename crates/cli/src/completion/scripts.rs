//! The scripts themselves, as cobra writes them.

use crate::tool::Tool;

pub(crate) fn bash(_tool: &Tool) -> String {
    String::new()
}

pub(crate) fn zsh(_tool: &Tool) -> String {
    String::new()
}

pub(crate) fn fish(_tool: &Tool) -> String {
    String::new()
}

pub(crate) fn powershell(_tool: &Tool) -> String {
    String::new()
}
