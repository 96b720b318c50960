//! A role of a team's own, from a plain function: it counts how often each product was viewed.
//!
//! The function only writes its row. That each view counts once, however often its message is
//! delivered, comes from the claim that is committed with it.
//!
//! ```sh
//! cargo run --example own_role
//! ```

use async_trait::async_trait;
use orderonce::broker::embedded::{Embedded, Options as QueueOptions};
use orderonce::broker::{Broker, Headers, Publication, Topology};
use orderonce::domain::key::EmptyPart;
use orderonce::domain::{Key, RoleName, Timestamp};
use orderonce::message::{self, Meta, Outgoing};
use orderonce::store::sqlite::{Database, Options, SqliteStore, from_sqlx};
use orderonce::store::{Connection, Store, Tx};
use orderonce::worker::handler::{Failure, Handler, HandlerRole};
use orderonce::worker::{Processor, Settings, Worker};
use serde::{Deserialize, Serialize};
use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

const VIEWED: &str = "product.viewed";

#[derive(Serialize, Deserialize)]
struct Viewed {
    view_id: String,
    product: String,
}

struct CountViews;

#[async_trait]
impl Handler for CountViews {
    type Event = Viewed;

    /// The view is the business action; every copy of its message carries the same id.
    fn key(&self, event: &Viewed) -> Result<Key, EmptyPart> {
        Key::new(&[&event.view_id, "view"])
    }

    async fn handle(&self, tx: &mut dyn Tx, event: &Viewed) -> Result<Vec<Outgoing>, Failure> {
        const COUNT: &str = "
            INSERT INTO product_views (product, views) VALUES (?1, 1)
            ON CONFLICT (product) DO UPDATE SET views = views + 1";
        let Connection::Sqlite(connection) = tx.connection() else {
            return Err(Failure::Again("written for SQLite alone".to_owned()));
        };
        let counted = sqlx::query(COUNT)
            .bind(&event.product)
            .execute(connection)
            .await;
        counted.map_err(from_sqlx)?;
        Ok(Vec::new())
    }
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    let (database, _) = Database::migrate(&Options {
        path: dir.path().join("views.db"),
        busy_timeout: Duration::from_secs(5),
        readers: 1,
    })
    .await?;
    let store = Arc::new(SqliteStore::new(database.clone()));
    let mut tx = store.begin().await?;
    if let Connection::Sqlite(connection) = tx.connection() {
        let table = "CREATE TABLE product_views (product TEXT PRIMARY KEY, views INTEGER NOT NULL)";
        sqlx::query(table).execute(connection).await?;
    }
    tx.commit().await?;

    // A queue for the role, bound to its type.
    let role = RoleName::new("views");
    let mut topology = Topology::default();
    topology.bind(&role, VIEWED);
    let queue = Embedded::new(database, topology, QueueOptions::default());

    // Two views, the first delivered three times.
    let mut publisher = queue.publisher().await?;
    let messages: Vec<_> = ["v1", "v1", "v2", "v1"].into_iter().map(message).collect();
    publisher.publish(&messages).await?;

    let handler = HandlerRole::new(role.clone(), VIEWED, CountViews);
    let processor = Arc::new(Processor::new(handler, store.clone(), Settings::default()));
    let consumer = queue.consumer(&role, 512).await?;
    let mut worker = Worker::new(processor, consumer, 256);
    let mut out = std::io::stdout();
    for settled in worker.run_once().await? {
        for item in settled.items {
            let message_id = settled.message_id.as_deref().unwrap_or("?");
            writeln!(out, "{message_id}: {}", item.outcome)?;
        }
    }
    worker.close().await?;

    let mut tx = store.begin().await?;
    if let Connection::Sqlite(connection) = tx.connection() {
        let count = "SELECT views FROM product_views WHERE product = 'lantern'";
        let views: i64 = sqlx::query_scalar(count).fetch_one(connection).await?;
        writeln!(out, "views of the lantern: {views}")?;
    }
    Ok(())
}

fn message(view_id: &str) -> Publication {
    let data = serde_json::json!({ "view_id": view_id, "product": "lantern" });
    let event = Outgoing {
        event_type: VIEWED.into(),
        subject: "lantern".to_owned(),
        data: data.to_string(),
    };
    let meta = Meta {
        id: view_id,
        source: "shop",
        time: Timestamp(0),
        traceparent: None,
    };
    Publication {
        message_id: view_id.to_owned(),
        event_type: VIEWED.to_owned(),
        addressee: None,
        message: message::encode(meta, &event).into(),
        headers: Headers::new(),
    }
}
