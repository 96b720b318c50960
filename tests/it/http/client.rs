//! A caller of the API.

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper::header::HeaderMap;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use tokio::net::TcpStream;

#[derive(Clone)]
pub(super) struct Client {
    pub(super) at: SocketAddr,
    key: String,
}

/// What is answered.
#[derive(Debug, Clone)]
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) headers: HeaderMap,
    pub(super) body: Value,
    pub(super) text: String,
}

impl Client {
    pub(super) fn new(at: SocketAddr, key: &str) -> Self {
        let key = key.to_owned();
        Self { at, key }
    }

    pub(super) async fn get(&self, path: &str) -> Answer {
        self.send("GET", path, &[], "").await
    }

    /// Asks for something under a key that nobody has used.
    pub(super) async fn post(&self, path: &str, body: &Value) -> Answer {
        self.post_as(&fresh_key(), path, body).await
    }

    pub(super) async fn post_as(&self, key: &str, path: &str, body: &Value) -> Answer {
        let headers = [
            ("idempotency-key", key),
            ("content-type", "application/json"),
        ];
        self.send("POST", path, &headers, &body.to_string()).await
    }

    pub(super) async fn put(&self, path: &str, header: (&str, &str), body: &Value) -> Answer {
        let headers = [header, ("content-type", "application/json")];
        self.send("PUT", path, &headers, &body.to_string()).await
    }

    pub(super) async fn send(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> Answer {
        self.try_send(method, path, headers, body).await.unwrap()
    }

    pub(super) async fn try_send(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> Result<Answer, Box<dyn std::error::Error + Send + Sync>> {
        let stream = TcpStream::connect(self.at).await?;
        let io = TokioIo::new(stream);
        let (mut sender, connection) = hyper::client::conn::http1::handshake(io).await?;
        tokio::spawn(connection);
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", "test");
        if !self.key.is_empty() {
            request = request.header("authorization", format!("Bearer {}", self.key));
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Full::new(Bytes::from(body.to_owned())))?;
        let response = sender.send_request(request).await?;
        let (parts, body) = response.into_parts();
        let body = body.collect().await?.to_bytes();
        Ok(Answer {
            status: parts.status.as_u16(),
            headers: parts.headers,
            body: serde_json::from_slice(&body).unwrap_or(Value::Null),
            text: String::from_utf8_lossy(&body).into_owned(),
        })
    }
}

impl Answer {
    /// Expects a problem of this kind.
    pub(super) fn is_problem(&self, status: u16, code: &str) {
        assert_eq!(
            (self.status, &self.body["code"]),
            (status, &json!(code)),
            "{self:?}"
        );
        assert_eq!(self.headers["content-type"], "application/problem+json");
        assert_eq!(self.body["status"], status);
        assert_eq!(self.body["type"], format!("urn:orderonce:{code}"));
        assert!(
            !self.body["detail"].as_str().unwrap().is_empty(),
            "{self:?}"
        );
    }

    /// Expects an answer with this outcome.
    pub(super) fn is(&self, status: u16, outcome: &str) {
        assert_eq!(
            (self.status, &self.body["outcome"]),
            (status, &json!(outcome)),
            "{self:?}"
        );
    }

    pub(super) fn is_replayed(&self) -> bool {
        self.headers.contains_key("idempotency-replayed")
    }
}

pub(super) fn fresh_key() -> String {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    format!("key-{}", NUMBER.fetch_add(1, Ordering::Relaxed))
}

/// An order of one unit of a SKU for 19.99.
pub(super) fn order(order_id: &str, sku: &str) -> Value {
    json!({
        "order_id": order_id, "user_id": "U1", "currency": "GBP", "total_minor": 1999,
        "lines": [{"sku_id": sku, "qty": 1, "unit_price_minor": 1999}],
    })
}
