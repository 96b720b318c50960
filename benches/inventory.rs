//! Deliveries a second through the inventory role: SQLite file and embedded queue, `synchronous =
//! FULL`, on the disk of the temporary directory.
//!
//! `one_line` makes an order of every goods line of a real shop's day, so a delivery is one claim,
//! one flow, one reservation, one row of the outbox, and a share in the stock rows of its batch.
//! `whole_invoice` takes the day's orders as they were, 22 lines on average. Receiving, deciding,
//! committing and settling are timed; publishing is not. `measured` is the same with metrics on.

#![expect(
    missing_docs,
    reason = "criterion_group! makes a public function without any"
)]
#![expect(
    clippy::expect_used,
    reason = "a benchmark that cannot be set up has nothing to measure"
)]

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use orderonce::broker::embedded::{Embedded, Options as QueueOptions};
use orderonce::broker::{Broker, Headers, Publication, Topology};
use orderonce::domain::event::{
    Adjustment, Event, InventoryEvent, OrderCreated, OrderEvent, StockAdjust, StockLine,
};
use orderonce::domain::{AdjustmentId, OrderId, RoleName, SkuId, Timestamp};
use orderonce::message::{self, Meta, Outgoing};
use orderonce::ops::demo::FIRST_DAY;
use orderonce::ops::online_retail::{Import, Options as ImportOptions};
use orderonce::store::sqlite::{Database, Options, SqliteStore};
use orderonce::telemetry::metrics;
use orderonce::worker::inventory::InventoryRole;
use orderonce::worker::{Processor, Settings, Worker};
use std::collections::BTreeSet;
use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;

type Lines = Vec<StockLine>;

/// The goods lines of the day's orders, order by order.
fn orders() -> Vec<Lines> {
    let import = Import::new(FIRST_DAY, ImportOptions::default()).expect("the sample data");
    let entries = import.flat_map(|invoice| invoice.expect("the sample data").entries);
    let creates = entries.filter_map(|entry| match entry.event {
        Event::Order(OrderEvent::Create(create)) => Some(create),
        Event::Order(_) | Event::Inventory(_) | Event::Account(_) | Event::Notice(_) => None,
    });
    let lines = creates.map(|create| {
        let goods = create.lines.into_iter().filter(|line| !line.charge);
        goods
            .map(|line| StockLine {
                sku_id: line.sku_id,
                qty: line.qty,
            })
            .collect()
    });
    lines.collect()
}

struct Shop {
    runtime: Runtime,
    queue: Embedded,
    processor: Arc<Processor<InventoryRole>>,
    made: usize,
    _dir: tempfile::TempDir,
}

impl Shop {
    fn open(orders: &[Lines]) -> Self {
        let runtime = Runtime::new().expect("a runtime");
        let dir = tempfile::tempdir().expect("a temporary directory");
        let options = Options {
            path: dir.path().join("bench.db"),
            busy_timeout: Duration::from_secs(5),
            readers: 2,
        };
        let (database, _) = runtime
            .block_on(Database::migrate(&options))
            .expect("a database");
        let options = QueueOptions {
            lease: Duration::from_secs(60),
            delivery_limit: 20,
            poll: Duration::from_millis(50),
            keep_acked: false,
        };
        let queue = Embedded::new(database.clone(), Topology::default(), options);
        let store = Arc::new(SqliteStore::new(database));
        let processor = Processor::new(InventoryRole, store, Settings::default());
        let shop = Self {
            runtime,
            queue,
            processor: Arc::new(processor),
            made: 0,
            _dir: dir,
        };
        shop.stock_up(orders);
        shop
    }

    fn stock_up(&self, orders: &[Lines]) {
        let skus: BTreeSet<&SkuId> = orders.iter().flatten().map(|line| &line.sku_id).collect();
        let adjust = |sku_id: &SkuId| {
            let event = InventoryEvent::Adjust(StockAdjust {
                adjustment_id: AdjustmentId::new(&format!("opening/{sku_id}")).expect("an id"),
                sku_id: sku_id.clone(),
                adjustment: Adjustment::Set(1_000_000_000),
                version: Some(0),
                reason: None,
            });
            let outgoing = Outgoing::from(&Event::Inventory(event.clone()));
            (event, outgoing)
        };
        let events = skus.into_iter().map(adjust).collect();
        let done = self.processor.process_events(Timestamp(0), events);
        self.runtime.block_on(done).expect("stock");
    }

    /// Publishes `run` new orders.
    fn publish(&mut self, orders: &[Lines], run: usize) {
        let messages: Vec<Publication> = (0..run)
            .map(|_| {
                self.made += 1;
                let created = Event::Inventory(InventoryEvent::Created(OrderCreated {
                    order_id: OrderId::new(&format!("B{}", self.made)).expect("an id"),
                    user_id: "U1".parse().expect("an id"),
                    lines: orders[self.made % orders.len()].clone(),
                }));
                let id = format!("m{}", self.made);
                let meta = Meta {
                    id: &id,
                    source: "bench",
                    time: Timestamp(0),
                    traceparent: None,
                };
                Publication {
                    message: message::encode(meta, &Outgoing::from(&created)).into(),
                    message_id: id,
                    event_type: "order.created".to_owned(),
                    addressee: None,
                    headers: Headers::new(),
                }
            })
            .collect();
        self.runtime.block_on(async {
            let mut publisher = self.queue.publisher().await.expect("a publisher");
            publisher.publish(&messages).await.expect("published");
        });
    }

    /// Handles the `run` orders that were published.
    fn drain(&self, batch_max: usize, run: usize) -> Duration {
        self.runtime.block_on(async {
            let prefetch = batch_max * 2;
            let consumer = self.queue.consumer(&RoleName::INVENTORY, prefetch).await;
            let consumer = consumer.expect("a consumer");
            let mut worker = Worker::new(Arc::clone(&self.processor), consumer, batch_max);
            let started = Instant::now();
            let mut settled = 0;
            while settled < run {
                settled += black_box(worker.run_available().await.expect("a batch")).len();
            }
            let elapsed = started.elapsed();
            worker.close().await.expect("closed");
            elapsed
        })
    }
}

fn inventory(criterion: &mut Criterion) {
    let invoices = orders();
    let lines: Vec<Lines> = invoices
        .iter()
        .flatten()
        .map(|line| vec![line.clone()])
        .collect();
    let mut group = criterion.benchmark_group("inventory");
    group.sample_size(10);
    // The last number is that of the deliveries in one timed run. Metrics stay on once they are.
    for (name, orders, batch_max, run) in [
        ("one_line/batch_max_256", &lines, 256, 4096),
        ("one_line/batch_max_1", &lines, 1, 128),
        ("whole_invoice/batch_max_256", &invoices, 256, 1024),
        ("one_line/batch_max_256/measured", &lines, 256, 4096),
        ("one_line/batch_max_1/measured", &lines, 1, 128),
    ] {
        if name.ends_with("measured") {
            metrics::install().expect("a recorder");
        }
        group.throughput(Throughput::Elements(run as u64));
        let mut shop = Shop::open(orders);
        group.bench_function(name, |bencher| {
            bencher.iter_custom(|iterations| {
                let runs = (0..iterations).map(|_| {
                    shop.publish(orders, run);
                    shop.drain(batch_max, run)
                });
                runs.sum()
            });
        });
    }
    group.finish();
}

criterion_group!(benches, inventory);
criterion_main!(benches);
