//! Orders with their payments and refunds.

use super::{Emitted, OrderState, Said, Verdict, int, text};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;

#[derive(Debug, Clone)]
pub(super) struct Orders {
    pay_within_seconds: i64,
    orders: BTreeMap<String, Order>,
    /// By provider and trade number.
    payments: BTreeMap<(String, String), Payment>,
    /// By provider and refund number.
    refunds: BTreeMap<(String, String), Refund>,
}

#[derive(Debug, Clone)]
struct Order {
    /// What it was created from.
    created_from: Value,
    user_id: String,
    currency: String,
    total_minor: i64,
    pay_deadline_ms: i64,
    status: Status,
    version: i64,
    paid_minor: i64,
    refunded_minor: i64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Status {
    WaitPay,
    Paid,
    Shipped,
    Completed,
    Closed,
    Refunded,
}

#[derive(Debug, Clone)]
struct Payment {
    order_id: String,
    trade_status: String,
    amount_minor: i64,
    currency: String,
    /// It made its order PAID; the others are surplus or late.
    accepted: bool,
}

#[derive(Debug, Clone)]
struct Refund {
    order_id: String,
    trade_no: Option<String>,
    amount_minor: i64,
    status: RefundStatus,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RefundStatus {
    Requested,
    Succeeded,
    Failed,
}

impl Status {
    fn name(self) -> &'static str {
        match self {
            Self::WaitPay => "WAIT_PAY",
            Self::Paid => "PAID",
            Self::Shipped => "SHIPPED",
            Self::Completed => "COMPLETED",
            Self::Closed => "CLOSED",
            Self::Refunded => "REFUNDED",
        }
    }
}

impl Order {
    fn moved(&mut self, to: Status) {
        self.status = to;
        self.version += 1;
    }
}

impl Orders {
    pub(super) fn new(pay_within_seconds: u32) -> Self {
        Self {
            pay_within_seconds: pay_within_seconds.into(),
            orders: BTreeMap::new(),
            payments: BTreeMap::new(),
            refunds: BTreeMap::new(),
        }
    }

    pub(super) fn snapshot(&self) -> BTreeMap<String, OrderState> {
        let state = |order: &Order| OrderState {
            status: order.status.name().to_owned(),
            version: order.version,
            paid_minor: order.paid_minor,
            refunded_minor: order.refunded_minor,
        };
        let orders = self.orders.iter();
        orders.map(|(id, it)| (id.clone(), state(it))).collect()
    }

    /// Unpaid orders whose deadline has come.
    pub(super) fn due(&self, now_ms: i64) -> Vec<String> {
        let orders = self.orders.iter();
        let due = orders.filter(|(_, order)| {
            order.status == Status::WaitPay && order.pay_deadline_ms <= now_ms
        });
        due.map(|(id, _)| id.clone()).collect()
    }

    pub(super) fn decide(
        &mut self,
        event_type: &str,
        data: &Value,
        now_ms: i64,
        by_clock: bool,
    ) -> Option<Said> {
        let order_id = text(data, "order_id")?;
        if event_type == "order.create" {
            return self.create(order_id, data, now_ms);
        }
        if !self.orders.contains_key(order_id) {
            return Some(Said::parked(&["order", order_id, "WAIT_PAY"]));
        }
        match event_type {
            "order.cancel" => self.close(order_id, "cancelled"),
            "stock.rejected" => self.close(order_id, "out_of_stock"),
            "order.expire" => self.expire(order_id, now_ms, by_clock),
            "order.ship" => self.ship(order_id),
            "order.complete" => self.complete(order_id),
            "order.refund" => self.ask_back(order_id, data),
            "order.remind" => Some(Verdict::Stale.into()),
            "stock.deducted" => self.deducted(order_id),
            "payment.succeeded" => self.payment_succeeded(order_id, data),
            "payment.failed" => self.payment_failed(order_id),
            "refund.succeeded" => self.refund_succeeded(order_id, data),
            "refund.failed" => self.refund_failed(order_id, data),
            _ => None,
        }
    }

    fn create(&mut self, order_id: &str, data: &Value, now_ms: i64) -> Option<Said> {
        if let Some(order) = self.orders.get(order_id) {
            let differs = ["user_id", "currency", "total_minor", "lines"]
                .iter()
                .any(|field| order.created_from.get(field) != data.get(field));
            return Some(if differs {
                Verdict::Conflict.into()
            } else {
                Verdict::Duplicate.into()
            });
        }
        let (user_id, currency) = (text(data, "user_id")?, text(data, "currency")?);
        let total_minor = int(data, "total_minor")?;
        let seconds = int(data, "pay_within_seconds").unwrap_or(self.pay_within_seconds);
        let order = Order {
            created_from: data.clone(),
            user_id: user_id.to_owned(),
            currency: currency.to_owned(),
            total_minor,
            pay_deadline_ms: now_ms + 1000 * seconds,
            status: if total_minor == 0 {
                Status::Paid
            } else {
                Status::WaitPay
            },
            version: 1,
            paid_minor: 0,
            refunded_minor: 0,
        };
        let is_charge = |line: &&Value| line.get("charge") == Some(&Value::Bool(true));
        let lines = data.get("lines")?.as_array()?.iter();
        let goods: Vec<_> = lines
            .filter(|line| !is_charge(line))
            .map(|line| json!({ "sku_id": line.get("sku_id"), "qty": line.get("qty") }))
            .collect();
        let created = json!({ "order_id": order_id, "user_id": user_id, "lines": goods });
        let mut said = Said::applied()
            .emit("order.created", created)
            .reach(&["order", order_id, "WAIT_PAY"]);
        if total_minor == 0 {
            said = said
                .emit("order.paid", paid(order_id, &order))
                .reach(&["order", order_id, "PAID"]);
        }
        self.orders.insert(order_id.to_owned(), order);
        Some(said)
    }

    /// `order.cancel` and `stock.rejected` differ by the reason alone.
    fn close(&mut self, order_id: &str, reason: &str) -> Option<Said> {
        let order = self.orders.get_mut(order_id)?;
        Some(match order.status {
            Status::WaitPay => {
                order.moved(Status::Closed);
                closed(Said::applied(), order_id, reason)
            }
            Status::Paid => {
                order.moved(Status::Closed);
                let mut said = closed(Said::applied(), order_id, reason);
                if let Some((provider, trade_no)) = self.accepted(order_id) {
                    let left = self.left(&provider, &trade_no)?;
                    if left > 0 {
                        said.emits
                            .push(self.ask_refund(&provider, &trade_no, left)?);
                    }
                }
                said
            }
            Status::Shipped => Said::rejected("already_shipped"),
            Status::Completed => Said::rejected("already_completed"),
            Status::Closed | Status::Refunded => Verdict::Stale.into(),
        })
    }

    fn expire(&mut self, order_id: &str, now_ms: i64, by_clock: bool) -> Option<Said> {
        let order = self.orders.get_mut(order_id)?;
        Some(if order.status != Status::WaitPay {
            Verdict::Stale.into()
        } else if by_clock || now_ms >= order.pay_deadline_ms {
            order.moved(Status::Closed);
            closed(Said::applied(), order_id, "expired")
        } else {
            Said::rejected("not_due")
        })
    }

    fn ship(&mut self, order_id: &str) -> Option<Said> {
        let order = self.orders.get_mut(order_id)?;
        Some(match order.status {
            Status::WaitPay => Said::parked(&["order", order_id, "PAID"]),
            Status::Paid => {
                order.moved(Status::Shipped);
                Said::applied()
                    .emit("order.shipped", json!({ "order_id": order_id }))
                    .reach(&["order", order_id, "SHIPPED"])
            }
            Status::Shipped | Status::Completed => Verdict::Stale.into(),
            Status::Closed => Said::rejected("order_closed"),
            Status::Refunded => Said::rejected("order_refunded"),
        })
    }

    fn complete(&mut self, order_id: &str) -> Option<Said> {
        let order = self.orders.get_mut(order_id)?;
        Some(match order.status {
            Status::WaitPay | Status::Paid => Said::parked(&["order", order_id, "SHIPPED"]),
            Status::Shipped => {
                order.moved(Status::Completed);
                let completed = json!({
                    "order_id": order_id,
                    "user_id": order.user_id,
                    "currency": order.currency,
                    "paid_minor": order.paid_minor,
                    "refunded_minor": order.refunded_minor,
                });
                Said::applied().emit("order.completed", completed)
            }
            Status::Completed => Verdict::Stale.into(),
            Status::Closed => Said::rejected("order_closed"),
            Status::Refunded => Said::rejected("order_refunded"),
        })
    }

    fn ask_back(&mut self, order_id: &str, data: &Value) -> Option<Said> {
        match self.orders.get(order_id)?.status {
            Status::WaitPay => return Some(Said::rejected("not_paid")),
            Status::Closed => return Some(Said::rejected("order_closed")),
            Status::Refunded => return Some(Said::rejected("order_refunded")),
            Status::Paid | Status::Shipped | Status::Completed => {}
        }
        let Some((provider, trade_no)) = self.accepted(order_id) else {
            return Some(Said::rejected("refund_exceeds_paid"));
        };
        let wanted = int(data, "amount_minor");
        let parts = [&provider[..], &trade_no, text(data, "refund_id")?];
        let number = (
            provider.clone(),
            refund_no(&provider, &super::joined(&parts, "/")),
        );
        if let Some(known) = self.refunds.get(&number) {
            if known.order_id != order_id {
                return Some(Said::rejected("number_of_another_order"));
            }
            let same = wanted.is_none() || wanted == Some(known.amount_minor);
            return Some(if same {
                Verdict::Duplicate.into()
            } else {
                Verdict::Conflict.into()
            });
        }
        let left = self.left(&provider, &trade_no)?;
        let amount = wanted.unwrap_or(left);
        if amount < 1 || amount > left {
            return Some(Said::rejected("refund_exceeds_paid"));
        }
        self.orders.get_mut(order_id)?.version += 1;
        let mut said = Said::applied();
        said.emits.push(self.request(number, &trade_no, amount)?);
        Some(said)
    }

    /// What of a payment has neither been given back nor been asked for.
    fn left(&self, provider: &str, trade_no: &str) -> Option<i64> {
        let trade = (provider.to_owned(), trade_no.to_owned());
        let of_it = |of: &str, refund: &Refund| {
            of == provider
                && refund.trade_no.as_deref() == Some(trade_no)
                && refund.status != RefundStatus::Failed
        };
        let gone = self.refunds.iter().filter(|((of, _), it)| of_it(of, it));
        let gone: i64 = gone.map(|(_, refund)| refund.amount_minor).sum();
        Some(self.payments.get(&trade)?.amount_minor - gone)
    }

    fn deducted(&mut self, order_id: &str) -> Option<Said> {
        let order = self.orders.get_mut(order_id)?;
        Some(match order.status {
            Status::WaitPay | Status::Paid | Status::Shipped | Status::Completed => {
                order.version += 1;
                Said::applied()
            }
            Status::Closed | Status::Refunded => Verdict::Stale.into(),
        })
    }

    fn payment_failed(&mut self, order_id: &str) -> Option<Said> {
        let order = self.orders.get_mut(order_id)?;
        Some(if order.status == Status::WaitPay {
            order.version += 1;
            Said::applied()
        } else {
            Verdict::Stale.into()
        })
    }

    fn payment_succeeded(&mut self, order_id: &str, data: &Value) -> Option<Said> {
        let order = self.orders.get_mut(order_id)?;
        let (provider, trade_no) = (text(data, "provider")?, text(data, "trade_no")?);
        let trade = (provider.to_owned(), trade_no.to_owned());
        let payment = Payment {
            order_id: order_id.to_owned(),
            trade_status: text(data, "trade_status").unwrap_or("SUCCEEDED").to_owned(),
            amount_minor: int(data, "amount_minor")?,
            currency: text(data, "currency")?.to_owned(),
            accepted: order.status == Status::WaitPay,
        };
        let no = |code| {
            let rejected = json!({
                "order_id": order_id,
                "provider": provider,
                "trade_no": trade_no,
                "amount_minor": payment.amount_minor,
                "currency": payment.currency,
                "reason": code,
            });
            Some(Said::rejected(code).emit("payment.rejected", rejected))
        };

        if let Some(known) = self.payments.get(&trade) {
            if known.order_id != order_id {
                return no("number_of_another_order");
            }
            let same =
                known.amount_minor == payment.amount_minor && known.currency == payment.currency;
            return Some(if !same {
                Verdict::Conflict.into()
            } else if known.trade_status == payment.trade_status {
                Verdict::Duplicate.into()
            } else {
                Verdict::Stale.into()
            });
        }
        if payment.accepted {
            if payment.currency != order.currency {
                return no("currency_mismatch");
            }
            if payment.amount_minor != order.total_minor {
                return no("amount_mismatch");
            }
            order.paid_minor = payment.amount_minor;
            order.moved(Status::Paid);
            let said = Said::applied()
                .emit("order.paid", paid(order_id, order))
                .reach(&["order", order_id, "PAID"]);
            self.payments.insert(trade, payment);
            return Some(said);
        }
        // Surplus or late: the whole amount goes back.
        let amount = payment.amount_minor;
        if amount == 0 {
            return Some(Verdict::Stale.into());
        }
        order.version += 1;
        self.payments.insert(trade, payment);
        let mut said = Said::applied();
        said.emits
            .push(self.ask_refund(provider, trade_no, amount)?);
        Some(said)
    }

    fn refund_succeeded(&mut self, order_id: &str, data: &Value) -> Option<Said> {
        let order = self.orders.get_mut(order_id)?;
        let (provider, refund_no) = (text(data, "provider")?, text(data, "refund_no")?);
        let number = (provider.to_owned(), refund_no.to_owned());
        let own = int(data, "amount_minor");
        if order.status == Status::WaitPay {
            return Some(Said::parked(&["order", order_id, "PAID"]));
        }
        let known = self.refunds.get(&number);
        if known.is_some_and(|it| it.order_id != order_id) {
            return Some(Said::rejected("number_of_another_order"));
        }
        if let Some(known) = known.filter(|it| it.status == RefundStatus::Succeeded) {
            return Some(if own.is_some_and(|own| own != known.amount_minor) {
                Verdict::Conflict.into()
            } else {
                Verdict::Duplicate.into()
            });
        }

        // The payment that it belongs to.
        let named = text(data, "trade_no")
            .map(str::to_owned)
            .or_else(|| known.and_then(|it| it.trade_no.clone()));
        let found = self.payments.iter().find(|((of, trade_no), payment)| {
            let meant = match &named {
                Some(named) => named == trade_no,
                None => payment.accepted,
            };
            of == provider && payment.order_id == order_id && meant
        });
        let Some(((_, trade_no), payment)) = found else {
            return Some(if order.status == Status::Refunded && named.is_none() {
                Verdict::Stale.into()
            } else {
                Said::rejected("payment_unknown")
            });
        };
        if payment.accepted && order.status == Status::Refunded {
            return Some(Verdict::Stale.into());
        }
        if text(data, "currency")? != payment.currency {
            return Some(Said::rejected("currency_mismatch"));
        }
        let before = refunded(&self.refunds, provider, trade_no);
        let amount = match own {
            Some(own) => own,
            None => int(data, "total_refunded_minor")? - before,
        };
        if amount <= 0 {
            return Some(Verdict::Stale.into());
        }
        if amount > payment.amount_minor - before {
            return Some(Said::rejected("refund_exceeds_paid"));
        }

        let refund = Refund {
            order_id: order_id.to_owned(),
            trade_no: Some(trade_no.clone()),
            amount_minor: amount,
            status: RefundStatus::Succeeded,
        };
        self.refunds.insert(number, refund);
        order.version += 1;
        if !payment.accepted {
            return Some(Said::applied());
        }
        order.refunded_minor += amount;
        let said = Said::applied().emit(
            "order.refunded",
            json!({
                "order_id": order_id,
                "user_id": order.user_id,
                "provider": provider,
                "refund_no": refund_no,
                "currency": order.currency,
                "amount_minor": amount,
                "paid_minor": order.paid_minor,
                "refunded_minor": order.refunded_minor,
                "completed": order.status == Status::Completed,
            }),
        );
        if order.refunded_minor < order.paid_minor {
            return Some(said);
        }
        let unshipped = order.status == Status::Paid;
        order.status = Status::Refunded;
        Some(if unshipped {
            closed(said, order_id, "refunded")
        } else {
            ended(said, order_id)
        })
    }

    fn refund_failed(&mut self, order_id: &str, data: &Value) -> Option<Said> {
        let order = self.orders.get_mut(order_id)?;
        let number = (
            text(data, "provider")?.to_owned(),
            text(data, "refund_no")?.to_owned(),
        );
        if order.status == Status::WaitPay {
            return Some(Verdict::Stale.into());
        }
        let known = self.refunds.get(&number);
        if known.is_some_and(|it| it.order_id != order_id) {
            return Some(Said::rejected("number_of_another_order"));
        }
        match known.map(|it| it.status) {
            Some(RefundStatus::Succeeded) => return Some(Verdict::Stale.into()),
            Some(RefundStatus::Failed) => return Some(Verdict::Duplicate.into()),
            Some(RefundStatus::Requested) | None => {}
        }
        let refund = self.refunds.entry(number).or_insert_with(|| Refund {
            order_id: order_id.to_owned(),
            trade_no: None,
            amount_minor: 0,
            status: RefundStatus::Failed,
        });
        refund.status = RefundStatus::Failed;
        order.version += 1;
        Some(Said::applied())
    }

    /// Provider and trade number of the payment that made the order PAID.
    fn accepted(&self, order_id: &str) -> Option<(String, String)> {
        self.payments
            .iter()
            .find(|(_, payment)| payment.accepted && payment.order_id == order_id)
            .map(|(trade, _)| trade.clone())
    }

    fn ask_refund(&mut self, provider: &str, trade_no: &str, amount: i64) -> Option<Emitted> {
        // A number that somebody has used for a refund is not used again.
        let mut number = (provider.to_owned(), refund_no(provider, trade_no));
        while self.refunds.contains_key(&number) {
            number.1 = refund_no(provider, &number.1);
        }
        self.request(number, trade_no, amount)
    }

    fn request(
        &mut self,
        number: (String, String),
        trade_no: &str,
        amount: i64,
    ) -> Option<Emitted> {
        let trade = (number.0.clone(), trade_no.to_owned());
        let payment = self.payments.get(&trade)?;
        let requested = json!({
            "order_id": payment.order_id,
            "provider": number.0,
            "trade_no": trade_no,
            "refund_no": number.1,
            "amount_minor": amount,
            "currency": payment.currency,
        });
        let refund = Refund {
            order_id: payment.order_id.clone(),
            trade_no: Some(trade_no.to_owned()),
            amount_minor: amount,
            status: RefundStatus::Requested,
        };
        self.refunds.insert(number, refund);
        Some(Emitted {
            event_type: "refund.requested",
            data: requested,
        })
    }

    /// What has been given back of each payment, for the tests of the model itself.
    #[cfg(test)]
    pub(super) fn paid_and_refunded(&self) -> Vec<(i64, i64)> {
        let of = |((provider, trade_no), payment): (&(String, String), &Payment)| {
            let back = refunded(&self.refunds, provider, trade_no);
            (payment.amount_minor, back)
        };
        self.payments.iter().map(of).collect()
    }
}

pub(super) fn refund_no(provider: &str, trade_no: &str) -> String {
    let digest = Sha256::digest(format!("{provider}\0{trade_no}"));
    let bytes: Vec<u8> = digest.into_iter().take(12).collect();
    format!("RF{}", hex::encode(bytes))
}

/// What has been given back of a payment.
fn refunded(refunds: &BTreeMap<(String, String), Refund>, provider: &str, trade_no: &str) -> i64 {
    refunds
        .iter()
        .filter(|((of, _), refund)| {
            let succeeded = refund.status == RefundStatus::Succeeded;
            succeeded && of == provider && refund.trade_no.as_deref() == Some(trade_no)
        })
        .map(|(_, refund)| refund.amount_minor)
        .sum()
}

fn paid(order_id: &str, order: &Order) -> Value {
    json!({
        "order_id": order_id,
        "user_id": order.user_id,
        "currency": order.currency,
        "paid_minor": order.paid_minor,
    })
}

fn closed(said: Said, order_id: &str, reason: &str) -> Said {
    let closed = json!({ "order_id": order_id, "reason": reason });
    ended(said.emit("order.closed", closed), order_id)
}

/// Whatever waits for an order that has ended is to be decided at once.
fn ended(said: Said, order_id: &str) -> Said {
    ["WAIT_PAY", "PAID", "SHIPPED"]
        .iter()
        .fold(said, |said, status| {
            said.reach(&["order", order_id, status])
        })
}
