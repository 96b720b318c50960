//! Layers in front of the database that forget, fail, or remember next to nothing.

use super::{DATABASES, site};
use crate::day::Day;
use crate::servers::Servers;
use crate::site::until;
use redis::Client;
use rustix::process::Signal;

/// Redis is flushed, full, short of memory, killed and started while workers use it and are killed themselves.
#[tokio::test]
async fn whatever_becomes_of_redis_every_effect_happens_once() {
    let Some(servers) = Servers::turn().await else {
        return;
    };
    let redis = servers.start("redis");
    for database in DATABASES {
        // A filter that says "maybe" of everything after a few keys; without it, marks.
        let marks = database != DATABASES[0];
        let more = format!(
            "batch.max = 16\nbatch.workers = 2\ngate.redis_url = \"{redis}\"\ngate.filter_keys = 8\n\
             gate.marks = {marks}\ngate.namespace = \"faults-{database}\"\nbroker.delivery_limit = 1000"
        );
        let site = site(&servers, database, &more).await;
        let day = Day::of_year(300);
        day.stock_up(&site).await;
        let mut rng = fastrand::Rng::with_seed(31);
        let mut seen_by_redis = 0;
        for (round, part) in day.parts(12, &mut rng).iter().enumerate() {
            let mut serving = site.serve(&[], &[]);
            serving.says("started").await;
            site.publish(part).await;
            match round % 6 {
                0 => command(&redis, &["FLUSHALL"]).await,
                1 => servers.kill("redis"),
                2 => drop(servers.start("redis")),
                3 => memory(&redis, "noeviction", "1").await,
                // So little that it forgets one key for another.
                4 => memory(&redis, "allkeys-lru", "1500kb").await,
                _ => command(&redis, &["CLIENT", "PAUSE", "300", "ALL"]).await,
            }
            let before = claims(&site).await;
            until("it has gone on", async || {
                site.is_settled().await || claims(&site).await > before
            })
            .await;
            serving.signal(Signal::KILL);
            serving.ends().await;
            seen_by_redis += serving.log().matches("\"layer\":\"gate\"").count();
        }
        site.serve_to_the_end().await;
        day.happened_once(&site).await;
        assert!(seen_by_redis > 0, "Redis was of no use at all");
    }
}

async fn claims(site: &crate::site::Site) -> i64 {
    site.number("SELECT count(*) FROM idempotent_record").await
}

async fn memory(url: &str, policy: &str, most: &str) {
    command(url, &["CONFIG", "SET", "maxmemory-policy", policy]).await;
    command(url, &["CONFIG", "SET", "maxmemory", most]).await;
}

async fn command(url: &str, words: &[&str]) {
    let client = Client::open(url).unwrap();
    let mut connection = client.get_multiplexed_async_connection().await.unwrap();
    let mut command = redis::cmd(words[0]);
    command.arg(&words[1..]);
    let _: redis::Value = command.query_async(&mut connection).await.unwrap();
}
