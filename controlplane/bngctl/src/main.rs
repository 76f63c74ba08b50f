//! bngctl: the operator's command line over REST.
//!
//! Exit status: 0 done, 1 the gateway refused or is failing, or nobody is known to have had a port, 2 wrong usage, 3 the gateway cannot be reached.

mod arguments;
mod gateway;
mod tables;

use std::io::Write;
use std::ops::ControlFlow;
use std::process::ExitCode;

use clap::Parser;
use serde_json::{Value, json};

use arguments::{Arguments, Command, ListCommand, LockoutCommand, SessionCommand, TraceCommand};
use gateway::{Failure, Gateway};

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match run(&arguments) {
        Ok(status) => status,
        Err(failure) => {
            eprintln!("bngctl: {failure}");
            failure.exit_code()
        }
    }
}

fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let gateway = Gateway::new(&arguments.url, &arguments.token_file);
    let (answer, text) = match &arguments.command {
        Command::Sessions(filter) => {
            let page = gateway.get("/api/v1/sessions", &filter.query())?;
            let text = tables::sessions(&page);
            (page, text)
        }
        Command::History(part) => {
            let page = gateway.get("/api/v1/sessions/history", &part.query())?;
            let text = tables::history(&page);
            (page, text)
        }
        Command::Session(SessionCommand::Show { id }) => {
            let session = gateway.get(&session_path(id), &[])?;
            let text = tables::details(&session);
            (session, text)
        }
        Command::Session(SessionCommand::SetLimits { id, change }) => {
            let session = gateway.patch(&session_path(id), &change.body())?;
            let text = tables::details(&session);
            (session, text)
        }
        Command::Session(SessionCommand::End { id }) => {
            gateway.delete(&session_path(id), &[])?;
            let text = format!("session {id} is being ended\n");
            (serde_json::json!({ "ending": id }), text)
        }
        Command::Session(SessionCommand::SetPolicy { id, change }) => {
            let path = format!("{}/policy", session_path(id));
            let policy = gateway.patch(&path, &change.body())?;
            let text = tables::details(&policy);
            (policy, text)
        }
        Command::Policy(ListCommand::List) => {
            let policies = gateway.get("/api/v1/policies", &[])?;
            let text = tables::policies(&policies);
            (policies, text)
        }
        Command::Filter(ListCommand::List) => {
            let filters = gateway.get("/api/v1/filters", &[])?;
            let text = tables::filters(&filters);
            (filters, text)
        }
        Command::Drops { all } => {
            let drops = gateway.get("/api/v1/drops", &[])?;
            let text = tables::drops(&drops, *all);
            (drops, text)
        }
        Command::Workers => {
            let workers = gateway.get("/api/v1/workers", &[])?;
            let text = tables::workers(&workers);
            (workers, text)
        }
        Command::Ports => {
            let ports = gateway.get("/api/v1/ports", &[])?;
            let text = tables::ports(&ports);
            (ports, text)
        }
        Command::Coalescing { all } => {
            let view = gateway.get("/api/v1/coalescing", &[])?;
            let text = tables::coalescing(&view, *all);
            (view, text)
        }
        Command::Pools => {
            let pools = gateway.get("/api/v1/pools", &[])?;
            let text = tables::pools(&pools);
            (pools, text)
        }
        Command::Events { only, since } => {
            return events(&gateway, arguments.json, only, since.as_deref());
        }
        Command::Reload {
            dry_run,
            allow_drops,
        } => {
            let request = json!({ "dry_run": dry_run, "allow_drops": allow_drops });
            let reload = gateway.post("/api/v1/reload", &request)?;
            let text = tables::reload(&reload);
            (reload, text)
        }
        Command::Lockout(LockoutCommand::List) => {
            let lockouts = gateway.get("/api/v1/lockouts", &[])?;
            let text = tables::lockouts(&lockouts);
            (lockouts, text)
        }
        Command::Lockout(LockoutCommand::Clear(clients)) => {
            let unlocked = gateway.delete("/api/v1/lockouts", &clients.query())?;
            let text = format!("{} let in again\n", tables::cell(&unlocked, &["unlocked"]));
            (unlocked, text)
        }
        Command::Nat(command) => {
            let who = gateway.get("/api/v1/nat/who", &command.query())?;
            show(arguments.json, &who, &tables::who(&who));
            return Ok(match who.get("answer").and_then(Value::as_str) {
                Some("held") => ExitCode::SUCCESS,
                _ => ExitCode::FAILURE,
            });
        }
        Command::Trace(command) => match trace(&gateway, command)? {
            Some(shown) => shown,
            None => return Ok(ExitCode::SUCCESS),
        },
        Command::Health => return health(&gateway, arguments.json),
    };
    show(arguments.json, &answer, &text);
    Ok(ExitCode::SUCCESS)
}

/// A health that fails comes with a status of its own, but it is an answer like any other.
fn health(gateway: &Gateway, json: bool) -> Result<ExitCode, Failure> {
    let health = gateway.health()?;
    show(json, &health, &tables::health(&health));
    Ok(match health.get("status").and_then(Value::as_str) {
        Some("ok" | "degraded") => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    })
}

/// Prints events until the gateway or the reader of the output has had enough.
fn events(
    gateway: &Gateway,
    json: bool,
    only: &[String],
    since: Option<&str>,
) -> Result<ExitCode, Failure> {
    let mut lost = None;
    let mut out = std::io::stdout().lock();
    let mut is_over = false;
    gateway.follow("/api/v1/events", since, |event, id, data| {
        let Ok(value) = serde_json::from_str::<Value>(data) else {
            return ControlFlow::Continue(());
        };
        if event == "lost" {
            lost = value.get("missed").map(Value::to_string);
            return ControlFlow::Break(());
        }
        if !only.is_empty() && !only.iter().any(|it| it == event) {
            return ControlFlow::Continue(());
        }
        let line = match json {
            true => format!("{value}\n"),
            false => tables::event(event, id, &value),
        };
        is_over = out.write_all(line.as_bytes()).and(out.flush()).is_err();
        match is_over {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    })?;
    match lost {
        Some(missed) => Err(Failure::Lost { missed }),
        None if is_over => Ok(ExitCode::SUCCESS),
        None => Err(gateway.ended()),
    }
}

/// What is to be shown of a trace, if anything.
fn trace(gateway: &Gateway, command: &TraceCommand) -> Result<Option<(Value, String)>, Failure> {
    let path = |id: &u32| format!("/api/v1/traces/{id}");
    Ok(Some(match command {
        TraceCommand::Start(order) => {
            let trace = gateway.post("/api/v1/traces", &order.body())?;
            let text = tables::traces(&Value::Array(vec![trace.clone()]));
            (trace, text)
        }
        TraceCommand::List => {
            let traces = gateway.get("/api/v1/traces", &[])?;
            let text = tables::traces(&traces);
            (traces, text)
        }
        TraceCommand::Show { id } => {
            let trace = gateway.get(&path(id), &[])?;
            let text = tables::trace(&trace);
            (trace, text)
        }
        TraceCommand::Save { id, file } => {
            let bytes = gateway.download(&(path(id) + "/pcapng"))?;
            let written = match file.as_os_str() == "-" {
                true => std::io::stdout().write_all(&bytes),
                false => std::fs::write(file, &bytes),
            };
            let failure = |error: std::io::Error| Failure::File {
                path: file.clone(),
                reason: error.to_string(),
            };
            written.map_err(failure)?;
            return Ok(None);
        }
        TraceCommand::Stop { id } => {
            gateway.delete(&path(id), &[])?;
            return Ok(None);
        }
    }))
}

fn session_path(id: &str) -> String {
    // Ids are made of a-z, 0-9 and `-`; anything else must not become another path.
    let safe = |c: char| c.is_ascii_alphanumeric() || c == '-';
    let id: String = id.chars().map(|c| if safe(c) { c } else { '_' }).collect();
    format!("/api/v1/sessions/{id}")
}

fn show(json: bool, answer: &Value, text: &str) {
    let out = match json {
        true => format!("{answer:#}\n"),
        false => text.to_owned(),
    };
    // A reader that has seen enough (`| head`) is no error.
    let _ = std::io::stdout().write_all(out.as_bytes());
}
