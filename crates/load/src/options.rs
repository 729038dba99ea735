//! The command line.

use std::time::Duration;

pub const USAGE: &str = "usage: dolmen-load WORKLOAD --endpoints HOST:PORT[,HOST:PORT...] [FLAGS]

workloads:
  put         one key after another
  get         one key each, in turn; needs `fill` first
  range       the first --keys keys in one answer; needs `fill` first
  txn         one comparison and one put
  keepalive   a lease for each client, kept alive over and over on one stream
  watch       --clients watchers of one key on --conns streams, and one writer at --rate; an operation is an event
  fill        --keys keys, 100 in each transaction, for the other workloads

flags:
  --clients N       callers, each waiting for its answer before it asks again (100)
  --conns N         connections they share (a tenth of the clients)
  --total N         operations; for watch, puts (10000)
  --seconds N       stop after so long, whatever --total says
  --until-closed    stop when standard input is closed, whatever --total says
  --rate N          operations a second, all clients together (no limit)
  --keys N          how many different keys (1000; for put, --total)
  --value-size N    bytes of a value (256)
  --serializable    get and range: of the member asked, without a round to the others
  --sorted          range: by value, highest first
  --patience N      seconds after which a run that hangs is given up (600)
";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Workload {
    Put,
    Get,
    Range,
    Txn,
    Keepalive,
    Watch,
    Fill,
}

const WORKLOADS: &[(&str, Workload)] = &[
    ("put", Workload::Put),
    ("get", Workload::Get),
    ("range", Workload::Range),
    ("txn", Workload::Txn),
    ("keepalive", Workload::Keepalive),
    ("watch", Workload::Watch),
    ("fill", Workload::Fill),
];

#[derive(Clone, Debug)]
pub struct Options {
    pub workload: Workload,
    pub endpoints: Vec<String>,
    pub clients: usize,
    pub connections: usize,
    pub total: u64,
    pub seconds: Option<Duration>,
    pub until_closed: bool,
    /// Operations a second.
    pub rate: Option<f64>,
    pub keys: u64,
    pub value_bytes: usize,
    pub serializable: bool,
    pub sorted: bool,
    pub patience: Duration,
}

impl Options {
    /// # Errors
    /// A flag or workload that does not exist, or a value that does not fit.
    pub fn parse(arguments: &[String]) -> Result<Self, String> {
        let mut arguments = arguments.iter();
        let name = arguments.next().ok_or_else(|| USAGE.to_owned())?;
        let workload = WORKLOADS.iter().find(|(known, _)| known == name).map(|(_, workload)| *workload);
        let workload = workload.ok_or_else(|| format!("no workload {name:?}\n\n{USAGE}"))?;
        let mut options = Self {
            workload,
            endpoints: Vec::new(),
            clients: 100,
            connections: 0,
            total: 10_000,
            seconds: None,
            until_closed: false,
            rate: None,
            keys: 0,
            value_bytes: 256,
            serializable: false,
            sorted: false,
            patience: Duration::from_secs(600),
        };
        while let Some(flag) = arguments.next() {
            let (name, inline) = match flag.split_once('=') {
                Some((name, value)) => (name, Some(value)),
                None => (flag.as_str(), None),
            };
            let mut value = || -> Result<&str, String> {
                let value = inline.or_else(|| arguments.next().map(String::as_str));
                value.ok_or_else(|| format!("{name} needs a value"))
            };
            match name {
                "--endpoints" => options.endpoints = value()?.split(',').map(str::to_owned).collect(),
                "--clients" => options.clients = number(name, value()?)?,
                "--conns" => options.connections = number(name, value()?)?,
                "--total" => options.total = number(name, value()?)?,
                "--seconds" => options.seconds = Some(Duration::from_secs(number(name, value()?)?)),
                "--until-closed" => options.until_closed = true,
                "--rate" => options.rate = Some(number::<u32>(name, value()?)?.into()),
                "--keys" => options.keys = number(name, value()?)?,
                "--value-size" => options.value_bytes = number(name, value()?)?,
                "--serializable" => options.serializable = true,
                "--sorted" => options.sorted = true,
                "--patience" => options.patience = Duration::from_secs(number(name, value()?)?),
                other => return Err(format!("unknown flag {other}\n\n{USAGE}")),
            }
        }
        if options.endpoints.is_empty() {
            return Err("--endpoints says where the members are".into());
        }
        if options.clients == 0 || options.rate == Some(0.0) {
            return Err("--clients and --rate are 1 or more".into());
        }
        if options.connections == 0 {
            options.connections = (options.clients / 10).max(1);
        }
        if options.keys == 0 {
            options.keys = if workload == Workload::Put { options.total.max(1) } else { 1_000 };
        }
        if options.seconds.is_some() || options.until_closed {
            options.total = u64::MAX;
        }
        Ok(options)
    }

    /// The workload's name.
    pub fn name(&self) -> &'static str {
        WORKLOADS.iter().find(|(_, workload)| *workload == self.workload).map_or("", |(name, _)| name)
    }
}

fn number<T: std::str::FromStr>(name: &str, value: &str) -> Result<T, String> {
    value.parse().map_err(|_| format!("{name}: {value:?} does not fit"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Options, String> {
        Options::parse(&line.split(' ').map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn flags_come_in_both_forms() {
        let options = parse("put --endpoints a:1,b:2 --clients=1000 --total 5").expect("options");
        assert_eq!((options.endpoints.len(), options.clients, options.connections), (2, 1000, 100));
        assert_eq!((options.total, options.keys, options.name()), (5, 5, "put"));
    }

    #[test]
    fn mistakes_are_refused() {
        for line in
            ["put", "nothing --endpoints a:1", "put --endpoints a:1 --clients 0", "put --endpoints a:1 --total x"]
        {
            assert!(parse(line).is_err(), "{line}");
        }
        assert!(parse("put --endpoints a:1 --until-closed").is_ok_and(|options| options.total == u64::MAX));
    }
}
