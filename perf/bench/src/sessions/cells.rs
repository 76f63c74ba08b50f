//! The measurements.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use serde_json::Value;

use super::SessionsArgs;
use super::dial::{Dial, Server};
use super::gateway::{Pair, Shape};
use super::results::{Ends, Left, Run};

/// Time between two looks at the sessions.
const LOOK: Duration = Duration::from_millis(250);
/// Time between two looks at the ended sessions, far less than it takes for one to be forgotten.
const HISTORY_LOOK: Duration = Duration::from_secs(5);
/// Reflector behind the gateway.
const REMOTE: &str = "8.0.0.1:7000";

/// Which there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Name {
    /// As many sessions as an access port is asked for, as fast as they are begun.
    Setups,
    /// The same with RADIUS: authentication, and accounting of starts and stops.
    Radius,
    /// More than one access port can have, over two.
    Ports,
    /// Few subscribers while PADI come from random addresses.
    Flood,
    /// Sessions that end and begin again, with traffic and with RADIUS.
    Churn,
}

impl Name {
    /// Name in the results.
    pub(super) const fn text(self) -> &'static str {
        match self {
            Self::Setups => "setups",
            Self::Radius => "radius",
            Self::Ports => "ports",
            Self::Flood => "flood",
            Self::Churn => "churn",
        }
    }
}

/// Sizes of all of them.
pub(super) struct Cells {
    programs: PathBuf,
    wanted: Vec<Name>,
    repeats: u16,
    rate: f64,
    setups: u32,
    per_port: u32,
    flood: (u32, u32),
    churn: (u32, u32, u32),
}

impl Cells {
    /// What is published.
    pub(super) fn full(args: &SessionsArgs, programs: PathBuf) -> Self {
        Self {
            programs,
            wanted: wanted(args),
            repeats: args.repeats,
            rate: args.rate,
            setups: args.sessions,
            per_port: 33_000,
            flood: (100, 10_000),
            churn: (1_000, 100, args.churn_seconds),
        }
    }

    /// What a test can wait for.
    pub(super) fn short(args: &SessionsArgs, programs: PathBuf) -> Self {
        Self {
            programs,
            wanted: wanted(args),
            repeats: 1,
            rate: 200.0,
            setups: 200,
            per_port: 50,
            flood: (20, 500),
            churn: (40, 10, 4),
        }
    }

    /// All of them, in turns, so that a slow minute of the machine does not hit all runs of one.
    pub(super) fn measure(&self) -> Result<Vec<Run>> {
        let mut runs = Vec::new();
        for turn in 0..self.repeats {
            for name in &self.wanted {
                if *name == Name::Churn && turn > 0 {
                    continue;
                }
                let run = self
                    .one(*name)
                    .with_context(|| format!("measurement {}", name.text()))?;
                eprintln!(
                    "{}: {} sessions, {:.0} setups per second, all up after {:.2} s, {:.0} bytes each",
                    run.name,
                    run.forwarding,
                    run.rate(),
                    run.all_up(),
                    run.bytes_per_session()
                );
                runs.push(run);
            }
        }
        Ok(runs)
    }

    fn one(&self, name: Name) -> Result<Run> {
        match name {
            Name::Setups | Name::Radius => {
                self.run(name, 1, self.setups, self.rate, &["--hold", "3"])
            }
            // Their number is what counts here: half the rate, so that two emulators on these cores keep up.
            Name::Ports => self.run(name, 2, self.per_port, self.rate / 4.0, &["--hold", "8"]),
            Name::Flood => {
                let (sessions, padi) = self.flood;
                let padi = padi.to_string();
                let more = ["--hold", "1", "--padi-flood", &padi];
                self.run(name, 1, sessions, f64::from(sessions), &more)
            }
            Name::Churn => {
                let (sessions, per_second, seconds) = self.churn;
                let (per_second, seconds) = (per_second.to_string(), seconds.to_string());
                let more = [
                    "--churn",
                    &per_second,
                    "--hold",
                    &seconds,
                    "--traffic-to",
                    REMOTE,
                    "--pps",
                    "2000",
                ];
                self.run(name, 1, sessions, 500.0, &more)
            }
        }
    }

    /// One run: `sessions` on each of `access` ports.
    fn run(&self, name: Name, access: u8, sessions: u32, rate: f64, more: &[&str]) -> Result<Run> {
        let all = sessions * u32::from(access);
        let shape = Shape {
            access,
            sessions: all,
            radius: matches!(name, Name::Radius | Name::Churn),
        };
        let server = match shape.radius {
            true => Some(Server::start()?),
            false => None,
        };
        let mut pair = Pair::start(&self.programs, shape)?;
        let before = pair.memory()?;
        let used = pair.driver_seconds();
        let is_churn = name == Name::Churn;
        let ledger = pair.file("ledger");
        let (core, ledger_file) = (pair.device(access), ledger.display().to_string());
        let mut dials = Vec::new();
        for port in 0..access {
            let mut more = more.to_vec();
            if is_churn {
                more.extend(["--core", &core, "--ledger", &ledger_file]);
            }
            let first = u32::from(port) * sessions;
            let access = pair.device(port);
            dials.push(Dial::start(&access, first, sessions, rate, &more)?);
        }
        let mut up = before;
        let mut driver_seconds = 0.0;
        let mut forwarding = 0;
        let mut known = History::default();
        let mut look = Instant::now();
        while !over(&mut dials)? {
            let driver = pair.driver_seconds() - used;
            let count = count(&pair.metrics()?, "bng_sessions{state=\"forwarding\"}");
            if count > forwarding {
                forwarding = count;
                up = pair.memory()?;
                driver_seconds = driver;
            }
            if is_churn && look.elapsed() >= HISTORY_LOOK {
                look = Instant::now();
                known.read(&pair)?;
            }
            std::thread::sleep(LOOK);
        }
        let mut dialled = Vec::new();
        for dial in dials {
            dialled.push(dial.result()?);
        }
        let mut left = Left::default();
        // The last ends wait for the dataplane.
        let gone = pair.wait("let go of all sessions", |pair| {
            left = left_in(&pair.metrics()?);
            Ok(left == Left::default())
        });
        if let Err(error) = gone {
            eprintln!("bng-perf: {error:#}");
        }
        let radius = match server {
            Some(server) => {
                pair.wait("deliver its accounting", |pair| {
                    let metrics = pair.metrics()?;
                    let waiting = ["bng_accounting_waiting", "bng_radius_pending"];
                    Ok(waiting.iter().all(|name| sum(&metrics, name, "") == 0))
                })?;
                Some(server.result()?)
            }
            None => None,
        };
        let ends = if is_churn {
            known.read(&pair)?;
            let text = std::fs::read_to_string(&ledger)?;
            Some(known.compare(&text)?)
        } else {
            None
        };
        let run = Run {
            name: name.text().to_owned(),
            offered: rate * f64::from(access),
            dialled,
            before,
            up,
            after: pair.memory()?,
            forwarding,
            driver_seconds,
            drops: drops(&pair.metrics()?),
            left,
            ends,
            radius,
        };
        pair.stop()?;
        Ok(run)
    }
}

fn wanted(args: &SessionsArgs) -> Vec<Name> {
    let all = Name::value_variants().iter().copied();
    all.filter(|name| args.only.is_empty() || args.only.contains(name))
        .collect()
}

fn over(dials: &mut [Dial]) -> Result<bool> {
    let mut all = true;
    for dial in dials {
        all &= dial.is_over()?;
    }
    Ok(all)
}

/// Counts are whole and fit; what is missing is 0.
fn count(metrics: &BTreeMap<String, f64>, name: &str) -> u64 {
    metrics.get(name).map_or(0, |value| *value as u64)
}

fn sum(metrics: &BTreeMap<String, f64>, name: &str, label: &str) -> u64 {
    let fitting = (metrics.iter()).filter(|(key, _)| key.starts_with(name) && key.contains(label));
    fitting.map(|(_, value)| *value as u64).sum()
}

fn left_in(metrics: &BTreeMap<String, f64>) -> Left {
    Left {
        sessions: sum(metrics, "bng_sessions{", ""),
        addresses: sum(metrics, "bng_pool_addresses{", "state=\"used\""),
        port_blocks: sum(metrics, "bng_nat_blocks{", "state=\"used\""),
    }
}

/// What was dropped, by reason, of both daemons.
fn drops(metrics: &BTreeMap<String, f64>) -> BTreeMap<String, u64> {
    let mut drops: BTreeMap<String, u64> = BTreeMap::new();
    for (name, value) in metrics {
        let Some((family, labels)) = name.split_once('{') else {
            continue;
        };
        let reason = match family {
            "bng_drops_total" | "bng_pppoe_drops_total" => "reason=\"",
            "bng_control_events_total" => "event=\"",
            _ => continue,
        };
        let named = labels.split_once(reason);
        let named = named.and_then(|(_, rest)| rest.split_once('"'));
        if let Some((reason, _)) = named.filter(|_| *value > 0.0) {
            *drops.entry(reason.to_owned()).or_default() += *value as u64;
        }
    }
    drops
}

/// What a session carried: packets and bytes up, packets and bytes down.
type Octets = [u64; 4];

/// Ended sessions as control remembers them: by client, and by the time and name of each.
#[derive(Debug, Default)]
struct History {
    ends: BTreeMap<(String, u64, String), Octets>,
}

impl History {
    /// Reads what is new.
    fn read(&mut self, pair: &Pair) -> Result<()> {
        let mut offset = 0;
        loop {
            let (total, items) = pair.history(offset)?;
            let before = self.ends.len();
            for item in &items {
                self.add(item)?;
            }
            offset += items.len();
            // The latest come first: a page without news is followed by more of those.
            if items.is_empty() || offset >= total || self.ends.len() == before {
                return Ok(());
            }
        }
    }

    /// Adds a session that was up; one that never was carries nothing and is in no ledger.
    fn add(&mut self, item: &Value) -> Result<()> {
        if item["was_up"].as_bool() == Some(false) {
            return Ok(());
        }
        let number = |name: &str| item[name].as_u64().with_context(|| format!("no {name}"));
        let text = |name: &str| item[name].as_str().with_context(|| format!("no {name}"));
        let key = (
            text("mac")?.to_owned(),
            number("started_unix_ms")?,
            text("id")?.to_owned(),
        );
        let octets = [
            number("upstream_packets")?,
            number("upstream_bytes")?,
            number("downstream_packets")?,
            number("downstream_bytes")?,
        ];
        self.ends.insert(key, octets);
        Ok(())
    }

    /// Compares with the lines of the emulator's ledger, client by client and in order.
    fn compare(&self, ledger: &str) -> Result<Ends> {
        let mut seen: BTreeMap<String, Vec<Octets>> = BTreeMap::new();
        for ((mac, ..), octets) in &self.ends {
            seen.entry(mac.clone()).or_default().push(*octets);
        }
        let mut sessions: BTreeMap<String, Vec<Octets>> = BTreeMap::new();
        let mut bytes = 0;
        for line in ledger.lines() {
            let numbers: Vec<u64> = line
                .split(' ')
                .map(str::parse)
                .collect::<Result<_, _>>()
                .with_context(|| format!("ledger: {line:?}"))?;
            let &[subscriber, _, up_packets, up, down_packets, down] = numbers.as_slice() else {
                bail!("ledger: {line:?}");
            };
            let [_, a, b, c] = u32::try_from(subscriber)?.to_be_bytes();
            let mac = format!("02:62:6e:{a:02x}:{b:02x}:{c:02x}");
            bytes += up + down;
            let octets = [up_packets, up, down_packets, down];
            sessions.entry(mac).or_default().push(octets);
        }
        let mut different = 0;
        for (mac, own) in &sessions {
            let theirs = seen.get(mac).map_or(&[][..], Vec::as_slice);
            let same = own.iter().zip(theirs).filter(|(a, b)| a == b).count();
            different += own.len().max(theirs.len()) - same;
        }
        let unknown = seen.iter().filter(|(mac, _)| !sessions.contains_key(*mac));
        different += unknown.map(|(_, ends)| ends.len()).sum::<usize>();
        Ok(Ends {
            sessions: sessions.values().map(|it| it.len() as u64).sum(),
            known: self.ends.len() as u64,
            different: different as u64,
            bytes,
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn end(mac: &str, started: u64, up: u64) -> Value {
        json!({
            "mac": mac, "started_unix_ms": started, "id": format!("access0-{started}"),
            "upstream_packets": 1, "upstream_bytes": up,
            "downstream_packets": 0, "downstream_bytes": 0,
        })
    }

    #[test]
    fn accounts_are_compared_session_by_session() {
        let mut history = History::default();
        for (started, up) in [(2, 20), (1, 10)] {
            let item = end("02:62:6e:00:00:01", started, up);
            history.add(&item).unwrap();
            // A page read twice adds nothing.
            history.add(&item).unwrap();
        }
        let same = history.compare("1 7 1 10 0 0\n1 8 1 20 0 0\n").unwrap();
        assert_eq!((same.sessions, same.known, same.different), (2, 2, 0));
        assert_eq!(same.bytes, 30);
        let order = history.compare("1 8 1 20 0 0\n1 7 1 10 0 0\n").unwrap();
        assert_eq!(order.different, 2);
        let mut never = end("02:62:6e:00:00:01", 3, 0);
        never["was_up"] = false.into();
        history.add(&never).unwrap();
        assert_eq!(history.ends.len(), 2);
        let missing = history.compare("1 7 1 10 0 0\n").unwrap();
        assert_eq!((missing.sessions, missing.different), (1, 1));
        let other = history.compare("2 7 1 10 0 0\n").unwrap();
        assert_eq!(other.different, 3);
        assert!(history.compare("1 7 1\n").is_err());
    }

    #[test]
    fn what_is_lost_is_summed_by_reason() {
        let metrics = [
            ("bng_drops_total{reason=\"a\",worker=\"0\"}", 1.0),
            ("bng_drops_total{reason=\"a\",worker=\"1\"}", 2.0),
            ("bng_pppoe_drops_total{reason=\"b\"}", 3.0),
            ("bng_pppoe_drops_total{reason=\"c\"}", 0.0),
            ("bng_sessions{state=\"closing\"}", 4.0),
        ];
        let metrics = (metrics.iter())
            .map(|(name, value)| ((*name).to_owned(), *value))
            .collect();
        let drops = drops(&metrics);
        assert_eq!(drops.len(), 2);
        assert_eq!((drops["a"], drops["b"]), (3, 3));
        assert_eq!(left_in(&metrics).sessions, 4);
    }
}
