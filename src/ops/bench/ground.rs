//! A database of a measurement's own, with the catalogue of a real shop in stock.

use super::Error;
use crate::config::Config;
use crate::domain::event::{
    Adjustment, Event, InventoryEvent, MAX_QTY, OrderEvent, StockAdjust, StockLine,
};
use crate::domain::{AdjustmentId, RoleName, SkuId, Timestamp};
use crate::message::Outgoing;
use crate::ops::demo::FIRST_DAY;
use crate::ops::deployment::Deployment;
use crate::ops::online_retail::{self, Import};
use crate::store::Store;
use crate::worker::Processor;
use crate::worker::inventory::InventoryRole;
use std::collections::BTreeSet;
use std::sync::Arc;

/// A database to measure on.
pub(super) struct Ground {
    pub(super) deployment: Deployment,
    /// The goods lines of the shop's day, in their order.
    pub(super) lines: Vec<StockLine>,
}

/// The stock of all SKUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Held {
    /// Flows of all SKUs, each of which counts its own in its version.
    pub(super) flows: i64,
    /// Units in stock.
    pub(super) units: i64,
}

impl Ground {
    /// Creates the tables where they are missing, and puts more of each SKU into stock than any
    /// measurement takes.
    ///
    /// # Errors
    /// [`Error::NotEmpty`] if the database holds claims; [`Error::Store`], [`Error::Worker`].
    pub(super) async fn open(config: &Config) -> Result<Self, Error> {
        let (deployment, _) = Deployment::migrate_store(config).await?;
        if !deployment.store.claim_counts().await?.is_empty() {
            let at = config.store.url.to_string();
            return Err(Error::NotEmpty { at });
        }
        let lines = lines()?;
        let ground = Self { deployment, lines };
        ground.stock_up().await?;
        Ok(ground)
    }

    pub(super) fn store(&self) -> &Arc<dyn Store> {
        &self.deployment.store
    }

    /// How many events were applied, by their claims. Goes through the whole table.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub(super) async fn claims(&self) -> Result<u64, Error> {
        let counts = self.store().claim_counts().await?;
        let applied = counts
            .into_iter()
            .filter(|(role, outcome, _)| *role == RoleName::INVENTORY && outcome == "applied");
        Ok(applied.map(|(_, _, count)| count).sum())
    }

    /// Its stock now.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub(super) async fn held(&self) -> Result<Held, Error> {
        let mut tx = self.store().begin().await?;
        let stock = tx.load_stock(&self.skus()).await?;
        tx.rollback().await?;
        Ok(Held {
            flows: stock.iter().map(|stock| stock.version).sum(),
            units: stock.iter().map(|stock| stock.available).sum(),
        })
    }

    fn skus(&self) -> Vec<&SkuId> {
        let skus: BTreeSet<_> = self.lines.iter().map(|line| &line.sku_id).collect();
        skus.into_iter().collect()
    }

    async fn stock_up(&self) -> Result<(), Error> {
        let deployment = &self.deployment;
        let store = Arc::clone(&deployment.store);
        let processor = Processor::new(InventoryRole, store, deployment.settings());
        let adjust = |sku_id: &&SkuId| {
            let event = InventoryEvent::Adjust(StockAdjust {
                adjustment_id: AdjustmentId::literal(&format!("opening/{sku_id}")),
                sku_id: (*sku_id).clone(),
                adjustment: Adjustment::Set(MAX_QTY),
                version: Some(0),
                reason: None,
            });
            let outgoing = Outgoing::from(&Event::Inventory(event.clone()));
            (event, outgoing)
        };
        for skus in self.skus().chunks(deployment.config.batch.max) {
            let events = skus.iter().map(adjust).collect();
            processor.process_events(Timestamp(0), events).await?;
        }
        Ok(())
    }
}

/// The goods lines of the day's orders.
fn lines() -> Result<Vec<StockLine>, Error> {
    let mut lines = Vec::new();
    for invoice in Import::new(FIRST_DAY, online_retail::Options::default())? {
        for entry in invoice?.entries {
            if let Event::Order(OrderEvent::Create(create)) = entry.event {
                let goods = create.lines.into_iter().filter(|line| !line.charge);
                lines.extend(goods.map(|line| StockLine {
                    sku_id: line.sku_id,
                    qty: line.qty,
                }));
            }
        }
    }
    Ok(lines)
}
