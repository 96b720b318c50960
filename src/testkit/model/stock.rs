//! Stock and what orders have taken of it.

use super::{ReservationState, Said, StockState, Verdict, int, text, units};
use serde_json::{Value, json};
use std::collections::BTreeMap;

#[derive(Debug, Clone, Default)]
pub(super) struct Stock {
    /// By SKU.
    rows: BTreeMap<String, Row>,
    /// By order.
    reservations: BTreeMap<String, Reservation>,
    /// Applied returns, by id.
    returns: BTreeMap<String, Value>,
    /// Applied adjustments, by id.
    adjustments: BTreeMap<String, Value>,
}

#[derive(Debug, Clone, Default)]
struct Row {
    available: i64,
    version: i64,
}

#[derive(Debug, Clone)]
struct Reservation {
    status: Status,
    /// Units per SKU that were deducted and have not come back.
    out: BTreeMap<String, i64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Status {
    Deducted,
    Rejected,
    Released,
}

impl Stock {
    pub(super) fn snapshot(&self) -> BTreeMap<String, StockState> {
        let state = |row: &Row| StockState {
            available: row.available,
            version: row.version,
        };
        let rows = self.rows.iter();
        rows.map(|(id, row)| (id.clone(), state(row))).collect()
    }

    pub(super) fn reservations(&self) -> BTreeMap<String, ReservationState> {
        let state = |reservation: &Reservation| ReservationState {
            status: match reservation.status {
                Status::Deducted => "DEDUCTED".to_owned(),
                Status::Rejected => "REJECTED".to_owned(),
                Status::Released => "RELEASED".to_owned(),
            },
        };
        let reservations = self.reservations.iter();
        reservations
            .map(|(id, it)| (id.clone(), state(it)))
            .collect()
    }

    /// Units of a SKU that no order holds.
    pub(super) fn available(&self, sku_id: &str) -> i64 {
        self.rows.get(sku_id).map_or(0, |row| row.available)
    }

    /// Units of a SKU that orders hold.
    #[cfg(test)]
    pub(super) fn out(&self, sku_id: &str) -> i64 {
        let reservations = self.reservations.values();
        reservations.filter_map(|it| it.out.get(sku_id)).sum()
    }

    pub(super) fn decide(&mut self, event_type: &str, data: &Value) -> Option<Said> {
        match event_type {
            "order.created" => self.deduct(data),
            "order.closed" => self.release(data),
            "stock.return" => self.give_back(data),
            "stock.adjust" => self.adjust(data),
            _ => None,
        }
    }

    /// All lines or none.
    fn deduct(&mut self, data: &Value) -> Option<Said> {
        let order_id = text(data, "order_id")?;
        if let Some(reservation) = self.reservations.get(order_id) {
            return Some(match reservation.status {
                Status::Deducted | Status::Rejected => Verdict::Duplicate.into(),
                Status::Released => Verdict::Stale.into(),
            });
        }
        let wanted = units(data)?;
        let mut shortages = Vec::new();
        for (sku_id, &units) in &wanted {
            let available = self.available(sku_id);
            if units > available {
                let shortage = json!({
                    "sku_id": sku_id,
                    "wanted": units,
                    "available": available,
                });
                shortages.push(shortage);
            }
        }
        if !shortages.is_empty() {
            let said = self.reserve(order_id, Status::Rejected, BTreeMap::new());
            let rejected = json!({ "order_id": order_id, "shortages": shortages });
            return Some(said.emit("stock.rejected", rejected));
        }
        for (sku_id, units) in &wanted {
            self.flow(sku_id, -units);
        }
        let said = self.reserve(order_id, Status::Deducted, wanted);
        Some(said.emit("stock.deducted", json!({ "order_id": order_id })))
    }

    fn release(&mut self, data: &Value) -> Option<Said> {
        let order_id = text(data, "order_id")?;
        let Some(reservation) = self.reservations.get_mut(order_id) else {
            return Some(self.reserve(order_id, Status::Released, BTreeMap::new()));
        };
        if reservation.status != Status::Deducted {
            return Some(Verdict::Stale.into());
        }
        reservation.status = Status::Released;
        for (sku_id, units) in std::mem::take(&mut reservation.out) {
            if units > 0 {
                self.flow(&sku_id, units);
            }
        }
        Some(Said::applied())
    }

    fn give_back(&mut self, data: &Value) -> Option<Said> {
        let (return_id, order_id) = (text(data, "return_id")?, text(data, "order_id")?);
        if let Some(known) = self.returns.get(return_id) {
            return Some(same_or_conflict(known, data));
        }
        let Some(reservation) = self.reservations.get_mut(order_id) else {
            return Some(Said::parked(&["stock", order_id, "DEDUCTED"]));
        };
        if reservation.status != Status::Deducted {
            return Some(Said::rejected("nothing_deducted"));
        }
        let mut back = Vec::new();
        for (sku_id, units) in units(data)? {
            let out = reservation.out.get_mut(&sku_id);
            if let Some(out) = out.filter(|out| **out > 0) {
                let units = units.min(*out);
                *out -= units;
                back.push((sku_id, units));
            }
        }
        if back.is_empty() {
            return Some(Said::rejected("nothing_out"));
        }
        for (sku_id, units) in back {
            self.flow(&sku_id, units);
        }
        self.returns.insert(return_id.to_owned(), data.clone());
        Some(Said::applied())
    }

    fn adjust(&mut self, data: &Value) -> Option<Said> {
        let (id, sku_id) = (text(data, "adjustment_id")?, text(data, "sku_id")?);
        if let Some(known) = self.adjustments.get(id) {
            return Some(same_or_conflict(known, data));
        }
        let row = self.rows.get(sku_id).cloned().unwrap_or_default();
        if int(data, "version").is_some_and(|seen| seen != row.version) {
            return Some(Said::rejected("version_mismatch"));
        }
        let after = match int(data, "set") {
            Some(level) => Some(level),
            None => row.available.checked_add(int(data, "change")?),
        };
        let Some(after) = after else {
            return Some(Said::rejected("amount_overflow"));
        };
        if after < 0 {
            return Some(Said::rejected("insufficient_stock"));
        }
        self.flow(sku_id, after - row.available);
        self.adjustments.insert(id.to_owned(), data.clone());
        Some(Said::applied())
    }

    /// A reservation's first status; returns that came too early can be decided from here on.
    fn reserve(&mut self, order_id: &str, status: Status, out: BTreeMap<String, i64>) -> Said {
        let reservation = Reservation { status, out };
        self.reservations.insert(order_id.to_owned(), reservation);
        Said::applied().reach(&["stock", order_id, "DEDUCTED"])
    }

    fn flow(&mut self, sku_id: &str, units: i64) {
        let row = self.rows.entry(sku_id.to_owned()).or_default();
        row.available += units;
        row.version += 1;
    }
}

fn same_or_conflict(known: &Value, data: &Value) -> Said {
    if known == data {
        Verdict::Duplicate.into()
    } else {
        Verdict::Conflict.into()
    }
}
