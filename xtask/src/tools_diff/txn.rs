//! Transactions, from stdin.

use super::line::{Line, Scenario, ctl, set, sets};

const INPUTS: &[&str] = &[
    "value(\"k\") = \"v\"\n\nput k2 x\n\nput k3 y\n\n",
    "val(\"k\") != \"v\"\n\nput k2 x\n\nput k3 y\n\n",
    "mod(\"k\") > \"0\"\nversion(\"k\") = \"1\"\nver(\"k\") < \"9\"\n\nget k\nget --prefix k\ndel k2\n\n\n",
    "create(\"k\") = \"2\"\nc(\"k\") != \"0\"\nm(\"k\") > \"1\"\n\nget k --count-only\n\n\n",
    "\nput a b\nget a\n\n\n",
    "\n\n\n",
    "\nput a 'single quoted'\nput b \"double \\\"quoted\\\"\"\nput c plain\nget --prefix \"\"\n\n\n",
    "\nput \"\\x61\\n\" \"\\u00e9\"\nget --from-key a\n\n\n",
    "\ndel a --prev-kv\ndel nosuch\ndel --prefix k --prev-kv\n\n\n",
    "",
    "value(\"k\") = \"v\"\n",
    "value(\"k\") = \"v\"\n\nput a b\n",
    "nonsense\n\n\n\n",
    "value(\"k\")=\"v\"\n\n\n\n",
    "value(k) = \"v\"\n\n\n\n",
    "value(\"k\" = \"v\"\n\n\n\n",
    "nosuch(\"k\") = \"v\"\n\n\n\n",
    "mod(\"k\") = \"x\"\n\n\n\n",
    "mod(\"k\") = 1\n\n\n\n",
    "value(\"k\") = v\n\n\n\n",
    "\nput\n\n\n",
    "\nput a\n\n\n",
    "\nput a b c\n\n\n",
    "\nput a b --nosuch\n\n\n",
    "\nget\n\n\n",
    "\nget a b c\n\n\n",
    "\nget a --limit x\n\n\n",
    "\ndel\n\n\n",
    "\nwatch a\n\n\n",
    "\nnosuch a\n\n\n",
    "\ntxn x\n\n\n",
    "\nput dup 1\nput dup 2\n\n\n",
    "\nget a --rev 99999\n\n\n",
    "\nput k v --lease 1\n\n\n",
    "\nget --prefix '' --sort-by VALUE --order DESCEND --keys-only\n\n\n",
    "\nget --prefix '' --print-value-only\n\n\n",
];

pub fn scenarios() -> Vec<Scenario> {
    let mut lines: Vec<Line> = sets("put k v\nput k2 w");
    for (at, input) in INPUTS.iter().enumerate() {
        lines.push(ctl("txn").stdin(input));
        if at < 9 {
            lines.extend(
                [" -w json", " -w fields", " --hex", " -i", " -w protobuf"]
                    .map(|end| ctl(&format!("txn{end}")).stdin(input)),
            );
            lines.push(set("put k v"));
        }
    }
    lines.push(ctl("txn -w table").stdin(INPUTS[0]));
    lines.push(ctl("txn --interactive").stdin(INPUTS[0]));
    lines.push(ctl("txn -i").stdin("nonsense\n"));
    lines.push(ctl("txn -i"));
    // Last, since only ours changes anything.
    let crash = "Go's etcdctl crashes on a comparison of leases; ours compares";
    for input in [
        "lease(\"k\") = \"0\"\n\nput k v --prev-kv\n\n\n",
        "lease(\"k\") = \"1f\"\n\n\nget k\n\n",
        "lease(\"k\") = \"zz\"\n\n\n\n",
    ] {
        lines.push(ctl("txn").stdin(input).kept(crash));
    }
    let help = "Go's etcdctl prints help and crashes; ours refuses a request that is none";
    lines.push(ctl("txn").stdin("\nget a -h\n\n\n").kept(help));
    vec![Scenario::one("txn", vec![lines])]
}
