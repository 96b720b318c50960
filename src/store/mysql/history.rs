//! What happened, for people. Nothing here writes or locks.

use super::outbox::outbox_row;
use super::parking::parked;
use super::repairs::repair;
use super::set::{Reader, Text};
use super::{MySqlStore, from_sqlx};
use crate::domain::{
    AccountKind, Currency, Fingerprint, Key, OrderId, RoleName, Timestamp, UserId,
};
use crate::store::history::{corrupt, counted, moment, money};
use crate::store::{
    ClaimRow, DeadFilter, DeadLetter, History, Moment, OrderSummary, OutboxRow, ParkedRow,
    RepairRow, Result,
};
use async_trait::async_trait;
use sqlx::FromRow;
use sqlx::mysql::{MySqlConnection, MySqlRow};

#[async_trait]
impl History for MySqlStore {
    async fn due_orders(&self, limit: u32) -> Result<(Timestamp, Vec<OrderId>)> {
        const DUE_ORDERS: &str = "
            SELECT order_id FROM orders
            WHERE status = 'WAIT_PAY' AND pay_deadline <= ?
            ORDER BY pay_deadline, order_id
            LIMIT ?";
        let now = self.database.now().await?;
        let select = sqlx::query(DUE_ORDERS).bind(now.0).bind(limit);
        let rows = self.database.fetch(select).await?;
        let ids = rows.iter().map(|row| {
            let id = Reader::new(row, "orders", 1).text(0)?;
            Ok(OrderId::literal(id))
        });
        Ok((now, ids.collect::<Result<_>>()?))
    }

    async fn due_reminders(&self, limit: u32) -> Result<(Timestamp, Vec<OrderId>)> {
        const DUE_REMINDERS: &str = "
            SELECT order_id FROM orders
            WHERE remind_at <= ?
            ORDER BY remind_at, order_id
            LIMIT ?";
        let now = self.database.now().await?;
        let select = sqlx::query(DUE_REMINDERS).bind(now.0).bind(limit);
        let rows = self.database.fetch(select).await?;
        let ids = rows.iter().map(|row| {
            let id = Reader::new(row, "orders", 1).text(0)?;
            Ok(OrderId::literal(id))
        });
        Ok((now, ids.collect::<Result<_>>()?))
    }

    async fn order_summary(&self, order_id: &str) -> Result<Option<OrderSummary>> {
        let mut tx = self.database.snapshot().await?;
        let summary = order_summary(&mut tx, order_id).await?;
        tx.end("COMMIT").await?;
        Ok(summary)
    }

    async fn timeline(&self, order_id: &str) -> Result<Vec<Moment>> {
        let mut tx = self.database.snapshot().await?;
        let mut moments = created(&mut tx, order_id).await?;
        moments.extend(payments(&mut tx, order_id).await?);
        moments.extend(refunds(&mut tx, order_id).await?);
        moments.extend(steps(&mut tx, order_id).await?);
        moments.extend(reservation(&mut tx, order_id).await?);
        moments.extend(stock_flows(&mut tx, order_id).await?);
        moments.extend(account_flows(&mut tx, order_id).await?);
        tx.end("COMMIT").await?;
        // A stable sort: at one moment the tables stay in the order above.
        moments.sort_by_key(|moment| moment.at);
        Ok(moments)
    }

    async fn claims_about(&self, subject: &str) -> Result<Vec<ClaimRow>> {
        const CLAIMS_ABOUT: &str = "
            SELECT role, `key`, subject, fingerprint, message_id, outcome, detail, request_body,
                created_at, concluded_at, expired_at
            FROM idempotent_record
            WHERE subject = ?
            ORDER BY created_at, role, `key`";
        let select = sqlx::query(CLAIMS_ABOUT).bind(subject.to_owned());
        let rows = self.database.fetch(select).await?;
        rows.iter().map(claim).collect()
    }

    async fn claims_of(&self, role: Option<&RoleName>, key: &str) -> Result<Vec<ClaimRow>> {
        // The roles are found by steps along the index, which begins with them.
        const CLAIMS_OF: &str = "
            SELECT c.role, c.`key`, c.subject, c.fingerprint, c.message_id, c.outcome, c.detail, c.request_body,
                c.created_at, c.concluded_at, c.expired_at
            FROM (SELECT DISTINCT role FROM idempotent_record) AS roles
            STRAIGHT_JOIN idempotent_record AS c FORCE INDEX (PRIMARY) ON c.role = roles.role AND c.`key` = ?
            WHERE ? IS NULL OR roles.role = ?
            ORDER BY c.created_at, c.role";
        let role = role.map(|role| role.as_str().to_owned());
        let select = sqlx::query(CLAIMS_OF)
            .bind(key.to_owned())
            .bind(role.clone())
            .bind(role);
        let rows = self.database.fetch(select).await?;
        rows.iter().map(claim).collect()
    }

    async fn parked(&self, subject: Option<&str>, limit: u32) -> Result<Vec<ParkedRow>> {
        const PARKED: &str = "
            SELECT role, `key`, awaits, message_id, event_type, message, headers, parked_at, deadline, woken_at
            FROM parked_event
            WHERE ? IS NULL OR subject = ?
            ORDER BY deadline, role, `key`
            LIMIT ?";
        let subject = subject.map(str::to_owned);
        let select = sqlx::query(PARKED)
            .bind(subject.clone())
            .bind(subject)
            .bind(limit);
        let rows = self.database.fetch(select).await?;
        rows.iter().map(parked).collect()
    }

    async fn outbox_about(&self, aggregate: &str) -> Result<Vec<OutboxRow>> {
        const OUTBOX_ABOUT: &str = "
            SELECT id, aggregate, addressee, event_type, message_id, headers, message, created_at,
                failures, last_error
            FROM outbox
            WHERE aggregate = ?
            ORDER BY id";
        let select = sqlx::query(OUTBOX_ABOUT).bind(aggregate.to_owned());
        let rows = self.database.fetch(select).await?;
        rows.iter().map(outbox_row).collect()
    }

    async fn repairs_about(&self, subject: &str) -> Result<Vec<RepairRow>> {
        const REPAIRS_ABOUT: &str = "
            SELECT id, at, actor, what, subject, role, `key`, `before`, `after`
            FROM repair
            WHERE subject = ?
            ORDER BY id";
        let select = sqlx::query(REPAIRS_ABOUT).bind(subject.to_owned());
        let rows = self.database.fetch(select).await?;
        rows.iter().map(repair).collect()
    }

    async fn dead_letters(&self, filter: &DeadFilter, limit: u32) -> Result<Vec<DeadLetter>> {
        const DEAD_LETTERS: &str = "
            SELECT id, role, message_id, `key`, reason, detail, raw, headers, deliveries, deaths,
                status, died_at, actor, actor_reason
            FROM dead_letter
            WHERE (? IS NULL OR role = ?) AND (? IS NULL OR status = ?)
                AND (? IS NULL OR reason = ?)
            ORDER BY id
            LIMIT ?";
        // A statement of its own: an optional condition would not use the index.
        const DEAD_LETTERS_OF_KEY: &str = "
            SELECT id, role, message_id, `key`, reason, detail, raw, headers, deliveries, deaths,
                status, died_at, actor, actor_reason
            FROM dead_letter
            WHERE `key` = ? AND (? IS NULL OR role = ?) AND (? IS NULL OR status = ?)
                AND (? IS NULL OR reason = ?)
            ORDER BY id
            LIMIT ?";
        let mut select = match &filter.key {
            Some(key) => sqlx::query(DEAD_LETTERS_OF_KEY).bind(key.clone()),
            None => sqlx::query(DEAD_LETTERS),
        };
        let role = filter.role.as_ref().map(|role| role.as_str().to_owned());
        let status = filter.status.map(<&'static str>::from);
        select = select.bind(role.clone()).bind(role);
        select = select.bind(status).bind(status);
        select = select
            .bind(filter.reason.clone())
            .bind(filter.reason.clone());
        let rows = self.database.fetch(select.bind(limit)).await?;
        rows.iter().map(dead_letter).collect()
    }

    async fn dead_letter(&self, id: i64) -> Result<Option<DeadLetter>> {
        const DEAD_LETTER: &str = "
            SELECT id, role, message_id, `key`, reason, detail, raw, headers, deliveries, deaths,
                status, died_at, actor, actor_reason
            FROM dead_letter
            WHERE id = ?";
        let rows = self
            .database
            .fetch(sqlx::query(DEAD_LETTER).bind(id))
            .await?;
        rows.first().map(dead_letter).transpose()
    }

    async fn claim_counts(&self) -> Result<Vec<(RoleName, String, u64)>> {
        const CLAIM_COUNTS: &str = "
            SELECT role, outcome, COUNT(*) FROM idempotent_record
            GROUP BY role, outcome
            ORDER BY role, outcome";
        let rows = self.database.fetch(sqlx::query(CLAIM_COUNTS)).await?;
        let counts = rows.iter().map(|row| {
            let row = Reader::new(row, "idempotent_record", 2);
            let (role, outcome) = (row.text(0)?.to_owned(), row.text(1)?.to_owned());
            let count: i64 = row.get(2)?;
            Ok((
                RoleName::new(role),
                outcome,
                u64::try_from(count).unwrap_or(0),
            ))
        });
        counts.collect()
    }
}

const ORDER_SUMMARY: &str = "
    SELECT o.order_id, o.user_id, o.status, o.version, o.currency, o.total_minor,
        o.paid_minor, o.refunded_minor, o.pay_deadline, r.status AS reservation
    FROM orders AS o
    LEFT JOIN reservation AS r ON r.order_id = o.order_id
    WHERE o.order_id = ?";
pub(super) async fn order_summary(
    connection: &mut MySqlConnection,
    order_id: &str,
) -> Result<Option<OrderSummary>> {
    let row: Option<SummaryRow> = sqlx::query_as(ORDER_SUMMARY)
        .bind(order_id)
        .fetch_optional(&mut *connection)
        .await
        .map_err(from_sqlx)?;
    match row {
        Some(row) => Ok(Some(row.summary(earned(connection, order_id).await?)?)),
        None => Ok(None),
    }
}

const CREATED: &str = "
    SELECT o.created_at, o.user_id, o.currency, o.total_minor, count(l.line_no),
        CAST(coalesce(sum(l.charge), 0) AS SIGNED), o.pay_deadline
    FROM orders AS o
    LEFT JOIN order_line AS l ON l.order_id = o.order_id
    WHERE o.order_id = ?
    GROUP BY o.order_id, o.created_at, o.user_id, o.currency, o.total_minor, o.pay_deadline";
async fn created(connection: &mut MySqlConnection, order_id: &str) -> Result<Vec<Moment>> {
    type Row = (i64, Text, Text, i64, i64, i64, i64);
    let row: Option<Row> = sqlx::query_as(CREATED)
        .bind(order_id)
        .fetch_optional(connection)
        .await
        .map_err(from_sqlx)?;
    let Some((at, user, currency, total, lines, charges, deadline)) = row else {
        return Ok(Vec::new());
    };
    let deadline = Timestamp(deadline);
    let total = money(total, &currency);
    let counted = if charges == 0 {
        counted(lines, "line")
    } else {
        format!(
            "{} ({})",
            counted(lines, "line"),
            counted(charges, "charge")
        )
    };
    Ok(vec![
        moment(
            at,
            "orders",
            format!("order of user {user}, to be paid by {deadline}"),
        ),
        moment(at, "order_line", format!("{counted}, total {total}")),
    ])
}

const STEPS: &str = "
    SELECT at, from_status, to_status, `key`, version FROM order_transition
    WHERE order_id = ?
    ORDER BY version";
async fn steps(connection: &mut MySqlConnection, order_id: &str) -> Result<Vec<Moment>> {
    let rows: Vec<(i64, Option<Text>, Text, Text, i64)> = sqlx::query_as(STEPS)
        .bind(order_id)
        .fetch_all(connection)
        .await
        .map_err(from_sqlx)?;
    let steps = rows.into_iter().map(|(at, from, to, key, version)| {
        let what = match from {
            None => format!("version {version}: {to}, by {key}"),
            Some(from) if from == to => format!("version {version}: stays {to}, note of {key}"),
            Some(from) => format!("version {version}: {from} -> {to}, by {key}"),
        };
        Moment {
            key: Some(Key::stored(&key)),
            ..moment(at, "order_transition", what)
        }
    });
    Ok(steps.collect())
}

const PAYMENTS: &str = "
    SELECT created_at, provider, trade_no, status, trade_status, amount_minor, currency
    FROM payment
    WHERE order_id = ?
    ORDER BY created_at, provider, trade_no";
async fn payments(connection: &mut MySqlConnection, order_id: &str) -> Result<Vec<Moment>> {
    type Row = (i64, Text, Text, Text, Option<Text>, i64, Text);
    let rows: Vec<Row> = sqlx::query_as(PAYMENTS)
        .bind(order_id)
        .fetch_all(connection)
        .await
        .map_err(from_sqlx)?;
    let payments = rows.into_iter().map(
        |(at, provider, trade_no, status, trade_status, amount, currency)| {
            let amount = money(amount, &currency);
            let said = trade_status.map_or_else(String::new, |said| format!(" ({said})"));
            let what = format!("payment {trade_no} by {provider}: {amount}, {status}{said}");
            moment(at, "payment", what)
        },
    );
    Ok(payments.collect())
}

const REFUNDS: &str = "
    SELECT created_at, updated_at, provider, refund_no, trade_no, status, amount_minor, currency
    FROM refund
    WHERE order_id = ?
    ORDER BY created_at, provider, refund_no";
async fn refunds(connection: &mut MySqlConnection, order_id: &str) -> Result<Vec<Moment>> {
    type Row = (i64, i64, Text, Text, Option<Text>, Text, i64, Text);
    let rows: Vec<Row> = sqlx::query_as(REFUNDS)
        .bind(order_id)
        .fetch_all(connection)
        .await
        .map_err(from_sqlx)?;
    let mut moments = Vec::with_capacity(rows.len());
    for (created, updated, provider, refund_no, trade_no, status, amount, currency) in rows {
        let amount = money(amount, &currency);
        let of = trade_no.map_or_else(String::new, |trade_no| format!(" of payment {trade_no}"));
        let refund = format!("refund {refund_no} by {provider}{of}");
        // The row tells of its last change; what came before it was the request.
        if updated > created {
            let what = format!("{refund}: first recorded");
            moments.push(moment(created, "refund", what));
        }
        let what = format!("{refund}: {amount}, {status}");
        moments.push(moment(updated, "refund", what));
    }
    Ok(moments)
}

const RESERVATION: &str = "
    SELECT created_at, updated_at, status, version FROM reservation WHERE order_id = ?";
async fn reservation(connection: &mut MySqlConnection, order_id: &str) -> Result<Vec<Moment>> {
    let row: Option<(i64, i64, Text, i64)> = sqlx::query_as(RESERVATION)
        .bind(order_id)
        .fetch_optional(connection)
        .await
        .map_err(from_sqlx)?;
    let Some((created, updated, status, version)) = row else {
        return Ok(Vec::new());
    };
    let mut moments = Vec::new();
    if version > 1 {
        let what = "stock reservation made".to_owned();
        moments.push(moment(created, "reservation", what));
    }
    let what = format!("stock reservation {status}");
    moments.push(moment(updated, "reservation", what));
    Ok(moments)
}

const STOCK_FLOWS: &str = "
    SELECT at, sku_id, action, qty, available_after FROM deduction_flow
    WHERE order_id = ?
    ORDER BY at, sku_id, flow_id";
async fn stock_flows(connection: &mut MySqlConnection, order_id: &str) -> Result<Vec<Moment>> {
    let rows: Vec<(i64, Text, Text, i64, i64)> = sqlx::query_as(STOCK_FLOWS)
        .bind(order_id)
        .fetch_all(connection)
        .await
        .map_err(from_sqlx)?;
    let flows = rows.into_iter().map(|(at, sku, action, qty, after)| {
        let what = format!("{action} SKU {sku}: {qty:+}, leaves {after}");
        moment(at, "deduction_flow", what)
    });
    Ok(flows.collect())
}

// The source id of a refund's flow begins with the order's own part; where that part was hashed,
// what the flow takes back still names the order.
const ACCOUNT_FLOWS: &str = "
    SELECT at, user_id, kind, source_type, source_id, amount, balance_after
    FROM account_flow
    WHERE source_type = 'ORDER' AND source_id = ?
    UNION
    SELECT at, user_id, kind, source_type, source_id, amount, balance_after
    FROM account_flow
    WHERE source_type = 'REFUND' AND source_id > CONCAT(?, '/') AND source_id < CONCAT(?, '0')
    UNION
    SELECT at, user_id, kind, source_type, source_id, amount, balance_after
    FROM account_flow
    WHERE user_id = (SELECT user_id FROM orders WHERE order_id = ?)
        AND reverses_source_type = 'ORDER' AND reverses_source_id = ?
    ORDER BY 1, 2, 3, 4, 5";
async fn account_flows(connection: &mut MySqlConnection, order_id: &str) -> Result<Vec<Moment>> {
    let escaped = Key::new(&[order_id]).map_or_else(|_| String::new(), |key| key.to_string());
    let rows: Vec<(i64, Text, Text, Text, Text, i64, i64)> = sqlx::query_as(ACCOUNT_FLOWS)
        .bind(order_id)
        .bind(&escaped)
        .bind(&escaped)
        .bind(order_id)
        .bind(order_id)
        .fetch_all(connection)
        .await
        .map_err(from_sqlx)?;
    let flows = rows
        .into_iter()
        .map(|(at, user, kind, source_type, source_id, amount, after)| {
            let what = format!(
                "{amount:+} {kind} of user {user} for {source_type} {source_id}, leaves {after}"
            );
            moment(at, "account_flow", what)
        });
    Ok(flows.collect())
}

const EARNED: &str = "
    SELECT f.kind, CAST(f.amount + coalesce((
        SELECT sum(r.amount) FROM account_flow AS r
        WHERE r.user_id = f.user_id AND r.kind = f.kind
            AND r.reverses_source_type = f.source_type AND r.reverses_source_id = f.source_id), 0) AS SIGNED)
    FROM account_flow AS f
    WHERE f.source_type = 'ORDER' AND f.source_id = ?
    ORDER BY f.kind";
async fn earned(
    connection: &mut MySqlConnection,
    order_id: &str,
) -> Result<Vec<(AccountKind, i64)>> {
    let rows: Vec<(Text, i64)> = sqlx::query_as(EARNED)
        .bind(order_id)
        .fetch_all(connection)
        .await
        .map_err(from_sqlx)?;
    let kinds = rows.into_iter();
    Ok(kinds
        .map(|(kind, kept)| (AccountKind::literal(&kind), kept))
        .collect())
}

#[derive(FromRow)]
struct SummaryRow {
    order_id: Text,
    user_id: Text,
    status: Text,
    version: i64,
    currency: Text,
    total_minor: i64,
    paid_minor: i64,
    refunded_minor: i64,
    pay_deadline: i64,
    reservation: Option<Text>,
}

impl SummaryRow {
    fn summary(self, earned: Vec<(AccountKind, i64)>) -> Result<OrderSummary> {
        Ok(OrderSummary {
            order_id: OrderId::literal(&self.order_id.0),
            user_id: UserId::literal(&self.user_id.0),
            status: self.status.0.parse().map_err(|e| corrupt("orders", e))?,
            version: self.version,
            currency: Currency::new(&self.currency.0).map_err(|e| corrupt("orders", e))?,
            total_minor: self.total_minor,
            paid_minor: self.paid_minor,
            refunded_minor: self.refunded_minor,
            pay_deadline: Timestamp(self.pay_deadline),
            reservation: match self.reservation {
                Some(status) => Some(status.0.parse().map_err(|e| corrupt("reservation", e))?),
                None => None,
            },
            earned,
        })
    }
}

/// Reads `role, key, subject, fingerprint, message_id, outcome, detail, request_body, created_at,
/// concluded_at, expired_at`.
fn claim(row: &MySqlRow) -> Result<ClaimRow> {
    let row = Reader::new(row, "idempotent_record", 2);
    let fingerprint: &[u8] = row.get(3)?;
    Ok(ClaimRow {
        role: RoleName::new(row.text(0)?.to_owned()),
        key: Key::stored(row.text(1)?),
        subject: row.text(2)?.to_owned(),
        fingerprint: Fingerprint::from_bytes(fingerprint).ok_or_else(|| {
            let bytes = fingerprint.len();
            row.corrupt(&format!("the fingerprint has {bytes} bytes, not 32"))
        })?,
        message_id: row.text(4)?.to_owned(),
        outcome: row.text(5)?.to_owned(),
        detail: row.optional_text(6)?.map(str::to_owned),
        body: row.optional_text(7)?.map(str::to_owned),
        created_at: Timestamp(row.get(8)?),
        concluded_at: Timestamp(row.get(9)?),
        expired_at: row.get::<Option<i64>>(10)?.map(Timestamp),
    })
}

/// Reads `id, role, message_id, key, reason, detail, raw, headers, deliveries, deaths, status,
/// died_at, actor, actor_reason`.
fn dead_letter(row: &MySqlRow) -> Result<DeadLetter> {
    let row = Reader::new(row, "dead_letter", 1);
    let text = |column| -> Result<_> { Ok(row.optional_text(column)?.map(str::to_owned)) };
    Ok(DeadLetter {
        id: row.get(0)?,
        role: RoleName::new(row.text(1)?.to_owned()),
        message_id: text(2)?,
        key: row.optional_text(3)?.map(Key::stored),
        reason: row.text(4)?.to_owned(),
        detail: row.text(5)?.to_owned(),
        raw: row.get(6)?,
        headers: row.json(7)?,
        deliveries: row.get(8)?,
        deaths: row.get(9)?,
        status: row.parse(10)?,
        died_at: Timestamp(row.get(11)?),
        actor: text(12)?,
        actor_reason: text(13)?,
    })
}
