//! Connections that are cut at each step.

use super::{DATABASES, SMALL_BATCHES, go_on, stands_still};
use crate::day::Day;
use crate::proxy::Proxy;
use crate::servers::Servers;
use crate::site::{Site, until};
use orderonce::testkit::kill;
use rustix::process::Signal;

/// Which connection is cut.
#[derive(Debug, Clone, Copy)]
enum Cut {
    /// That to the database.
    Store,
    /// That to the database, which has done what it was asked.
    StoreAnswer,
    /// Those to RabbitMQ.
    Broker,
    /// Those to RabbitMQ, which has done what it was asked.
    BrokerAnswer,
}

/// The step that is cut, the point before it, and what is cut there.
const CUTS: [(&str, &str, Cut); 9] = [
    ("begin", "asked", Cut::Store),
    ("claim", "begun", Cut::Store),
    ("load", "claimed", Cut::Store),
    ("write", "decided", Cut::Store),
    ("commit", "written", Cut::Store),
    ("answer to the commit", "written", Cut::StoreAnswer),
    ("publish", "relay_read", Cut::Broker),
    ("confirm", "relay_read", Cut::BrokerAnswer),
    ("ack", "committed", Cut::Broker),
];

/// Which passages of a point are cut.
const PASSAGES: [u64; 3] = [1, 2, 5];

// The proxies must go on while the test waits for a command.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_effect_happens_once_wherever_a_connection_is_cut() {
    let Some(servers) = Servers::turn().await else {
        return;
    };
    for database in DATABASES {
        let (store_url, broker_url) = (servers.start(database), servers.start("rabbitmq"));
        let (store, broker) = (
            Proxy::before(&store_url).await,
            Proxy::before(&broker_url).await,
        );
        let broker_url = broker.url(&broker_url);
        let by_proxy = |url: &str| store.url(url);
        let site = Site::through(&by_proxy, &store_url, &broker_url, SMALL_BATCHES).await;
        let day = Day::of_year(270);
        day.stock_up(&site).await;
        let cuts = CUTS.iter();
        let cuts = cuts.flat_map(|cut| PASSAGES.map(|passage| (cut, passage)));
        let mut rng = fastrand::Rng::with_seed(17);
        let parts = day.parts(CUTS.len() * PASSAGES.len(), &mut rng);
        for (((step, point, cut), passage), part) in cuts.zip(parts) {
            println!("{database}: {step} {passage}");
            site.publish(&part).await;
            let at = format!("{point}:{passage}");
            let mut serving = site.serve(&[], &[(kill::STOP_AT, &at)]);
            stands_still(&mut serving).await;
            match cut {
                Cut::Store => store.cut(),
                Cut::StoreAnswer => store.swallow_next_answer(),
                Cut::Broker => broker.cut(),
                Cut::BrokerAnswer => broker.swallow_next_answer(),
            }
            go_on(&serving);
            until("the answer was kept back", async || {
                !store.is_swallowing() && !broker.is_swallowing()
            })
            .await;
            serving.settles(&site).await;
            serving.stops(Signal::TERM).await;
        }
        site.serve_to_the_end().await;
        day.happened_once(&site).await;
        assert_eq!(site.number("SELECT count(*) FROM dead_letter").await, 0);
    }
}
