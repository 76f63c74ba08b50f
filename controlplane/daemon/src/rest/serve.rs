//! Connections of a listener: so many at once, and none that keeps its place without asking for anything.
//!
//! `axum::serve` takes every connection and waits for its request for ever; whoever can reach the port, token or not, could
//! then take all descriptors of the process.

use std::future::Future;
use std::io::ErrorKind;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

/// Limits of a listener.
#[derive(Debug, Clone, Copy)]
pub struct ListenLimits {
    /// Connections at once; further ones wait in the kernel's queue.
    pub connections: usize,
    /// How long the head of a request may be in coming; between two requests of a connection as well.
    pub head: Duration,
}

impl Default for ListenLimits {
    fn default() -> Self {
        Self {
            connections: 256,
            head: Duration::from_secs(10),
        }
    }
}

/// Pause after an error that is not one connection's, such as a lack of descriptors.
const PAUSE: Duration = Duration::from_secs(1);

/// Serves until `end` is ready; requests under way are finished.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    limits: ListenLimits,
    end: impl Future<Output = ()> + Send,
) {
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(limits.head);
    let places = Arc::new(Semaphore::new(limits.connections));
    let under_way = GracefulShutdown::new();
    let mut end = pin!(end);
    loop {
        let next = async {
            let place = Arc::clone(&places).acquire_owned().await;
            (place, listener.accept().await)
        };
        let (place, accepted) = tokio::select! {
            () = &mut end => break,
            next = next => next,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                let of_one = [
                    ErrorKind::ConnectionAborted,
                    ErrorKind::ConnectionRefused,
                    ErrorKind::ConnectionReset,
                ];
                if !of_one.contains(&error.kind()) {
                    tracing::error!(%error, "no connection could be accepted");
                    tokio::time::sleep(PAUSE).await;
                }
                continue;
            }
        };
        let service = TowerToHyperService::new(router.clone());
        let connection = http.serve_connection(TokioIo::new(stream), service);
        let connection = under_way.watch(connection);
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a connection ended early");
            }
            drop(place);
        });
    }
    drop(listener);
    under_way.shutdown().await;
}
