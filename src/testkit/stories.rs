//! Random stories: what shops, providers and staff send in the life of a few orders, with most of
//! what can go wrong with it.
//!
//! A story holds each message once. Copies, crashes and delays are for the test to add; what the
//! system publishes itself is for the system to publish.

use super::model::{consumer, refund_no};
use fastrand::Rng;
use serde_json::{Value, json};

/// How much happens in a story.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size {
    /// Orders, each with its payments, refunds and returns.
    pub orders: usize,
    /// SKUs that the orders compete for.
    pub skus: usize,
    /// Customers, each with an account.
    pub users: usize,
}

/// A message from outside.
#[derive(Debug, Clone, PartialEq)]
pub struct StoryMessage {
    /// Its type, such as `order.create`.
    pub event_type: String,
    /// Its business content, in canonical form.
    pub data: Value,
}

impl StoryMessage {
    /// The role that consumes it.
    #[must_use]
    pub fn role(&self) -> &'static str {
        consumer(&self.event_type).unwrap_or_default()
    }
}

/// Tells a story: the same one for the same seed. Most messages come in their natural order, some
/// late, a few at any time. No event depends on the clock: orders expire early or not at all.
#[must_use]
pub fn generate(rng: &mut Rng, size: Size) -> Vec<StoryMessage> {
    let mut story = Story {
        rng,
        size,
        messages: Vec::new(),
        trades: Vec::new(),
        refunds: Vec::new(),
        next: 0,
    };
    for sku in 0..size.skus {
        story.stock(sku);
    }
    for order in 0..size.orders {
        story.order(order);
    }
    for user in 0..size.users {
        story.account(user);
    }
    story.contradict();
    story.messages.sort_by_key(|(at, _)| *at);
    story.messages.into_iter().map(|(_, it)| it).collect()
}

/// Ticks between the starts of two orders.
const ORDER_TICKS: usize = 12;

struct Story<'a> {
    rng: &'a mut Rng,
    size: Size,
    /// With the tick at which each is sent.
    messages: Vec<(usize, StoryMessage)>,
    /// Trade numbers, to be used for another order by mistake.
    trades: Vec<String>,
    /// Refund numbers, likewise.
    refunds: Vec<String>,
    next: usize,
}

/// What the messages about one order have in common.
struct Plan {
    start: usize,
    order_id: String,
    provider: &'static str,
    trade_no: String,
    currency: &'static str,
    /// Minor units per unit of price.
    scale: i64,
    total: i64,
    skus: Vec<String>,
}

impl Story<'_> {
    fn chance(&mut self, percent: u8) -> bool {
        self.rng.u8(0..100) < percent
    }

    /// A number that no other message of the story has.
    fn fresh(&mut self, prefix: &str) -> String {
        self.next += 1;
        format!("{prefix}{}", self.next)
    }

    fn end(&self) -> usize {
        self.size.orders * ORDER_TICKS + 20
    }

    /// Sends a message at a tick, give or take.
    fn send(&mut self, tick: usize, event_type: &str, data: Value) {
        let late = match self.rng.u8(0..100) {
            0..70 => self.rng.usize(0..3),
            70..92 => self.rng.usize(0..30),
            _ => self.rng.usize(0..self.end()),
        };
        let early = if self.chance(15) {
            self.rng.usize(0..15)
        } else {
            0
        };
        let message = StoryMessage {
            event_type: event_type.to_owned(),
            data,
        };
        let at = (tick + late + 15).saturating_sub(early);
        self.messages.push((at, message));
    }

    fn stock(&mut self, sku: usize) {
        let sku_id = sku_id(sku);
        let opening = json!({
            "adjustment_id": self.fresh("A"),
            "sku_id": sku_id,
            "set": self.rng.i64(0..40),
            "version": 0,
        });
        self.send(0, "stock.adjust", opening);
        for _ in 0..self.rng.usize(0..4) {
            let mut data = json!({ "adjustment_id": self.fresh("A"), "sku_id": sku_id });
            if self.chance(40) {
                data["set"] = json!(self.rng.i64(0..40));
                data["version"] = json!(self.rng.i64(0..8));
            } else {
                let change = self.rng.i64(1..15);
                data["change"] = json!(if self.chance(40) { -change } else { change });
                if self.chance(30) {
                    data["version"] = json!(self.rng.i64(0..8));
                }
            }
            if self.chance(50) {
                data["reason"] = json!("counted");
            }
            let tick = self.rng.usize(0..self.end());
            self.send(tick, "stock.adjust", data);
        }
    }

    fn order(&mut self, number: usize) {
        let plan = self.create(number);
        self.pay(&plan);
        self.end_of(&plan);
        self.refund(&plan);
        if self.chance(25) {
            self.ask_back(&plan);
        }
        self.give_back(&plan);
    }

    fn create(&mut self, number: usize) -> Plan {
        let (currency, scale) = match self.rng.u8(0..10) {
            0 => ("JPY", 1),
            1 => ("KWD", 1000),
            _ => ("CNY", 100),
        };
        let free = self.chance(8);
        let mut lines = Vec::new();
        let mut skus = Vec::<String>::new();
        let mut total = 0;
        for _ in 0..self.rng.usize(1..4) {
            let again = skus.first().filter(|_| self.rng.u8(0..100) < 30).cloned();
            let sku_id = again.unwrap_or_else(|| sku_id(self.rng.usize(0..self.size.skus.max(1))));
            let (qty, price) = (self.rng.i64(1..5), self.rng.i64(1..30) * scale / 2 + 1);
            let price = if free { 0 } else { price };
            total += qty * price;
            lines.push(line(&sku_id, qty, price));
            skus.push(sku_id);
        }
        if !free && self.chance(30) {
            let mut postage = line("POSTAGE", 1, scale * 3);
            postage["charge"] = json!(true);
            total += scale * 3;
            lines.push(postage);
        }
        if !free && self.chance(12) {
            // A voucher over the whole amount makes a free order of one that was not.
            let off = if self.chance(30) { total } else { total / 4 };
            let mut voucher = line("VOUCHER", 1, -off);
            voucher["charge"] = json!(true);
            total -= off;
            lines.push(voucher);
        }
        let plan = Plan {
            start: number * ORDER_TICKS,
            order_id: if number % 7 == 6 {
                format!("O/{number}:%~")
            } else {
                format!("O{number}")
            },
            provider: if self.chance(50) { "alipay" } else { "card" },
            trade_no: self.fresh("T"),
            currency,
            scale,
            total,
            skus,
        };
        let mut data = json!({
            "order_id": plan.order_id,
            "user_id": user_id(self.rng.usize(0..self.size.users.max(1))),
            "currency": currency,
            "total_minor": total,
            "lines": lines,
        });
        if self.chance(20) {
            data["pay_within_seconds"] = json!(self.rng.u32(100_000..200_000));
        }
        self.send(plan.start, "order.create", data);
        plan
    }

    fn pay(&mut self, plan: &Plan) {
        let succeeded = "payment.succeeded";
        if self.chance(20) {
            let mut failed = json!({
                "order_id": plan.order_id,
                "provider": plan.provider,
                "trade_no": if self.chance(30) { plan.trade_no.clone() } else { self.fresh("T") },
            });
            if self.chance(50) {
                failed["reason"] = json!("card declined");
            }
            self.send(plan.start + 3, "payment.failed", failed);
        }
        if self.chance(15) {
            let mut wrong = self.payment(plan);
            if self.chance(60) {
                wrong["amount_minor"] = json!((plan.total + self.rng.i64(-1..2)).max(0));
            } else {
                wrong["currency"] = json!("GBP");
            }
            self.send(plan.start + 3, succeeded, wrong);
        }
        if self.chance(80) {
            let mut payment = self.payment(plan);
            payment["trade_no"] = json!(plan.trade_no);
            let staged = self.chance(30);
            if staged {
                payment["trade_status"] = json!("TRADE_SUCCESS");
            }
            if self.chance(15) {
                payment["out_trade_no"] = json!(self.fresh("out"));
            }
            self.send(plan.start + 5, succeeded, payment.clone());
            if staged && self.chance(70) {
                payment["trade_status"] = json!("TRADE_FINISHED");
                if self.chance(10) {
                    payment["amount_minor"] = json!(plan.total + 1);
                }
                self.send(plan.start + 11, succeeded, payment);
            }
            self.trades.push(plan.trade_no.clone());
        }
        if self.chance(15) {
            let mut second = self.payment(plan);
            if self.chance(20) {
                second["amount_minor"] = json!(0);
            }
            let trade_no = second["trade_no"].as_str().unwrap_or_default().to_owned();
            let tick = plan.start + self.rng.usize(5..30);
            self.send(tick, succeeded, second);
            if self.chance(60) {
                self.answer(plan, &trade_no, tick + 5);
            }
        }
        if self.chance(5)
            && let Some(other) = self.rng.choice(self.trades.clone())
        {
            let mut stolen = self.payment(plan);
            stolen["trade_no"] = json!(other);
            self.send(plan.start + 8, succeeded, stolen);
        }
    }

    /// A payment that fits, under a new trade number.
    fn payment(&mut self, plan: &Plan) -> Value {
        json!({
            "order_id": plan.order_id,
            "provider": plan.provider,
            "trade_no": self.fresh("T"),
            "amount_minor": plan.total,
            "currency": plan.currency,
        })
    }

    /// The provider does as it was asked, or says that it cannot.
    fn answer(&mut self, plan: &Plan, trade_no: &str, tick: usize) {
        let refund_no = refund_no(plan.provider, trade_no);
        if self.chance(25) {
            self.refund_failed(plan, &refund_no, tick);
        }
        let mut answer = self.refunded(plan, &refund_no);
        answer["amount_minor"] = json!(plan.total.max(1));
        if self.chance(50) {
            answer["trade_no"] = json!(trade_no);
        }
        self.send(tick + 3, "refund.succeeded", answer);
    }

    fn end_of(&mut self, plan: &Plan) {
        let order = json!({ "order_id": plan.order_id });
        if self.chance(20) {
            let mut cancel = order.clone();
            if self.chance(50) {
                cancel["reason"] = json!("changed my mind");
            }
            let tick = plan.start + self.rng.usize(1..30);
            self.send(tick, "order.cancel", cancel);
            if self.chance(60) {
                self.answer(plan, &plan.trade_no, tick + 5);
            }
        }
        if self.chance(15) {
            let tick = plan.start + self.rng.usize(1..20);
            self.send(tick, "order.expire", order.clone());
        }
        if self.chance(65) {
            self.send(plan.start + 9, "order.ship", order.clone());
        }
        if self.chance(55) {
            self.send(plan.start + 13, "order.complete", order);
        }
    }

    /// Somebody wants money back, sometimes more than there is, sometimes twice.
    fn ask_back(&mut self, plan: &Plan) {
        for _ in 0..self.rng.usize(1..4) {
            let mut asked = json!({ "order_id": plan.order_id, "refund_id": self.fresh("A") });
            if self.chance(70) {
                asked["amount_minor"] = json!(self.rng.i64(0..plan.total.max(2)) + 1);
            }
            let tick = plan.start + self.rng.usize(5..25);
            self.send(tick, "order.refund", asked.clone());
            if self.chance(20) {
                asked["reason"] = json!("damaged");
                self.send(tick + 2, "order.refund", asked);
            }
        }
    }

    fn refund(&mut self, plan: &Plan) {
        let tick = plan.start + self.rng.usize(7..30);
        let refund_no = self.fresh("R");
        let mut refund = self.refunded(plan, &refund_no);
        if self.chance(50) {
            refund["trade_no"] = json!(plan.trade_no);
        }
        match self.rng.u8(0..100) {
            0..12 => {
                refund["amount_minor"] = json!(plan.total.max(1));
                self.send(tick, "refund.succeeded", refund);
            }
            12..25 => {
                refund["amount_minor"] = json!(self.rng.i64(0..plan.total.max(2)) + 1);
                self.send(tick, "refund.succeeded", refund);
            }
            25..40 => self.running_totals(plan, tick),
            40..45 => {
                refund["amount_minor"] = json!(plan.total + plan.scale);
                self.send(tick, "refund.succeeded", refund);
            }
            45..50 => {
                refund["amount_minor"] = json!(1);
                refund["currency"] = json!("GBP");
                self.send(tick, "refund.succeeded", refund);
            }
            50..54 => {
                refund["amount_minor"] = json!(1);
                refund["trade_no"] = json!(self.fresh("T"));
                self.send(tick, "refund.succeeded", refund);
            }
            54..60 => {
                if let Some(other) = self.rng.choice(self.refunds.clone()) {
                    refund["refund_no"] = json!(other);
                    refund["amount_minor"] = json!(1);
                    self.send(tick, "refund.succeeded", refund);
                    self.refund_failed(plan, &other, tick);
                }
            }
            60..68 => self.refund_failed(plan, &refund_no, tick),
            _ => {}
        }
        self.refunds.push(refund_no);
    }

    /// A provider that states what it has refunded so far. Totals that overtake one another are
    /// stale.
    fn running_totals(&mut self, plan: &Plan, tick: usize) {
        let mut total = 0;
        for step in 0..self.rng.usize(2..5) {
            total = (total + self.rng.i64(0..plan.total.max(2))).min(plan.total.max(1));
            let refund_no = self.fresh("R");
            let mut refund = self.refunded(plan, &refund_no);
            refund["total_refunded_minor"] = json!(total.max(1));
            self.send(tick + 3 * step, "refund.succeeded", refund);
        }
    }

    /// A refund without its amount.
    fn refunded(&mut self, plan: &Plan, refund_no: &str) -> Value {
        json!({
            "order_id": plan.order_id,
            "provider": plan.provider,
            "refund_no": refund_no,
            "currency": plan.currency,
        })
    }

    fn refund_failed(&mut self, plan: &Plan, refund_no: &str, tick: usize) {
        let mut failed = json!({
            "order_id": plan.order_id,
            "provider": plan.provider,
            "refund_no": refund_no,
        });
        if self.chance(50) {
            failed["reason"] = json!("account closed");
        }
        self.send(tick, "refund.failed", failed);
    }

    fn give_back(&mut self, plan: &Plan) {
        if !self.chance(30) {
            return;
        }
        for _ in 0..self.rng.usize(1..3) {
            let mut lines = Vec::new();
            for _ in 0..self.rng.usize(1..3) {
                let own = self.rng.choice(plan.skus.clone());
                let sku_id = own.filter(|_| self.rng.u8(0..100) < 90);
                let sku_id = sku_id.unwrap_or_else(|| "ANOTHER".to_owned());
                lines.push(json!({ "sku_id": sku_id, "qty": self.rng.i64(1..6) }));
            }
            let data = json!({
                "return_id": self.fresh("B"),
                "order_id": plan.order_id,
                "lines": lines,
            });
            let tick = plan.start + self.rng.usize(2..40);
            self.send(tick, "stock.return", data);
        }
    }

    fn account(&mut self, user: usize) {
        let user_id = user_id(user);
        for _ in 0..self.rng.usize(2..8) {
            let tick = self.rng.usize(0..self.end());
            let kind = if self.chance(60) { "POINTS" } else { "BALANCE" };
            let change = |source_type: &str, source_id: &str| {
                json!({
                    "user_id": user_id,
                    "kind": kind,
                    "source_type": source_type,
                    "source_id": source_id,
                })
            };
            if self.chance(45) {
                let mut debit = change("SPEND", &self.fresh("D"));
                debit["amount"] = json!(self.rng.i64(1..60));
                self.send(tick, "account.debit", debit);
                continue;
            }
            let promo = self.fresh("promo/");
            let mut credit = change("PROMO", &promo);
            credit["amount"] = json!(self.rng.i64(1..60));
            self.send(tick, "account.credit", credit);
            for _ in 0..self.rng.usize(0..3) {
                let mut reverse = change("UNDO", &self.fresh("U"));
                let order_id = format!("O{}", self.rng.usize(0..self.size.orders.max(1)));
                let (of_type, of_id) = if self.chance(80) {
                    ("PROMO", promo.clone())
                } else {
                    ("ORDER", order_id)
                };
                reverse["of_source_type"] = json!(of_type);
                reverse["of_source_id"] = json!(of_id);
                if self.chance(60) {
                    reverse["amount"] = json!(self.rng.i64(1..60));
                }
                self.send(tick + 3, "account.reverse", reverse);
            }
        }
    }

    /// Some messages come again with the same key and other content.
    fn contradict(&mut self) {
        for (at, message) in self.messages.clone() {
            if !self.chance(5) {
                continue;
            }
            let StoryMessage {
                event_type,
                mut data,
            } = message;
            let field = match event_type.as_str() {
                "order.create" => "user_id",
                "order.cancel" | "payment.failed" | "refund.failed" => "reason",
                "stock.return" => "order_id",
                _ => [
                    "amount_minor",
                    "total_refunded_minor",
                    "amount",
                    "set",
                    "change",
                ]
                .into_iter()
                .find(|field| data.get(field).is_some())
                .unwrap_or_default(),
            };
            match data.get(field).map(Value::as_i64) {
                // A change by zero is none.
                Some(Some(-1)) => data[field] = json!(1),
                Some(Some(number)) => data[field] = json!(number + 1),
                Some(None) => data[field] = json!("other"),
                None if field == "reason" => data[field] = json!("other"),
                // It has nothing to contradict.
                None => continue,
            }
            self.send(at, &event_type, data);
        }
    }
}

fn sku_id(number: usize) -> String {
    // SKUs differ by case alone.
    let letter = if number.is_multiple_of(2) { 'a' } else { 'A' };
    format!("S{}{letter}", number / 2)
}

fn user_id(number: usize) -> String {
    if number % 3 == 2 {
        format!("u:{number}/é%~")
    } else {
        format!("U{number}")
    }
}

fn line(sku_id: &str, qty: i64, price: i64) -> Value {
    json!({
        "sku_id": sku_id,
        "qty": qty,
        "unit_price_minor": price,
        "amount_minor": qty * price,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: Size = Size {
        orders: 30,
        skus: 4,
        users: 3,
    };

    #[test]
    fn the_same_seed_tells_the_same_story() {
        let tell = |seed| generate(&mut Rng::with_seed(seed), SIZE);
        assert_eq!(tell(1), tell(1));
        assert_ne!(tell(1), tell(2));
    }

    #[test]
    fn totals_are_the_sums_of_their_lines() {
        for message in generate(&mut Rng::with_seed(3), SIZE) {
            if message.event_type == "order.create" {
                let lines = message.data["lines"].as_array().unwrap();
                let sum: i64 = lines
                    .iter()
                    .filter_map(|it| it["amount_minor"].as_i64())
                    .sum();
                assert_eq!(message.data["total_minor"], sum);
                assert!(sum >= 0);
            }
        }
    }

    #[test]
    fn every_message_has_a_role() {
        for message in generate(&mut Rng::with_seed(4), SIZE) {
            assert!(!message.role().is_empty(), "{message:?}");
        }
    }
}
