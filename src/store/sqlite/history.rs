//! What happened, for people. Nothing here writes or locks.

use super::outbox::outbox_row;
use super::parking::parked;
use super::repairs::repair;
use super::{SqliteStore, from_sqlx};
use crate::domain::{
    AccountKind, Currency, Fingerprint, Key, OrderId, RoleName, Timestamp, UserId,
};
use crate::store::history::{corrupt, counted, moment, money};
use crate::store::{
    ClaimRow, DeadFilter, DeadLetter, Error, History, Moment, OrderSummary, OutboxRow, ParkedRow,
    RepairRow, Result,
};
use async_trait::async_trait;
use sqlx::FromRow;
use sqlx::sqlite::SqliteConnection;

#[async_trait]
impl History for SqliteStore {
    async fn due_orders(&self, limit: u32) -> Result<(Timestamp, Vec<OrderId>)> {
        const DUE_ORDERS: &str = "
            SELECT order_id FROM orders
            WHERE status = 'WAIT_PAY' AND pay_deadline <= ?1
            ORDER BY pay_deadline, order_id
            LIMIT ?2";
        let now = self.database.now();
        let ids: Vec<String> = sqlx::query_scalar(DUE_ORDERS)
            .bind(now.0)
            .bind(limit)
            .fetch_all(self.readers())
            .await
            .map_err(from_sqlx)?;
        Ok((now, ids.iter().map(|id| OrderId::literal(id)).collect()))
    }

    async fn due_reminders(&self, limit: u32) -> Result<(Timestamp, Vec<OrderId>)> {
        const DUE_REMINDERS: &str = "
            SELECT order_id FROM orders
            WHERE remind_at <= ?1
            ORDER BY remind_at, order_id
            LIMIT ?2";
        let now = self.database.now();
        let ids: Vec<String> = sqlx::query_scalar(DUE_REMINDERS)
            .bind(now.0)
            .bind(limit)
            .fetch_all(self.readers())
            .await
            .map_err(from_sqlx)?;
        Ok((now, ids.iter().map(|id| OrderId::literal(id)).collect()))
    }

    async fn order_summary(&self, order_id: &str) -> Result<Option<OrderSummary>> {
        // One transaction, so that all rows are of one state.
        let mut tx = self.readers().begin().await.map_err(from_sqlx)?;
        order_summary(&mut tx, order_id).await
    }

    async fn timeline(&self, order_id: &str) -> Result<Vec<Moment>> {
        let mut tx = self.readers().begin().await.map_err(from_sqlx)?;
        let mut moments = created(&mut tx, order_id).await?;
        moments.extend(payments(&mut tx, order_id).await?);
        moments.extend(refunds(&mut tx, order_id).await?);
        moments.extend(steps(&mut tx, order_id).await?);
        moments.extend(reservation(&mut tx, order_id).await?);
        moments.extend(stock_flows(&mut tx, order_id).await?);
        moments.extend(account_flows(&mut tx, order_id).await?);
        // A stable sort: at one moment the tables stay in the order above.
        moments.sort_by_key(|moment| moment.at);
        Ok(moments)
    }

    async fn claims_about(&self, subject: &str) -> Result<Vec<ClaimRow>> {
        const CLAIMS_ABOUT: &str = "
            SELECT role, key, subject, fingerprint, message_id, outcome, detail, request_body,
                created_at, concluded_at, expired_at
            FROM idempotent_record
            WHERE subject = ?1
            ORDER BY created_at, role, key";
        let rows: Vec<RawClaim> = sqlx::query_as(CLAIMS_ABOUT)
            .bind(subject)
            .fetch_all(self.readers())
            .await
            .map_err(from_sqlx)?;
        rows.into_iter().map(TryInto::try_into).collect()
    }

    async fn claims_of(&self, role: Option<&RoleName>, key: &str) -> Result<Vec<ClaimRow>> {
        // The roles are found by steps along the index, which begins with them.
        const CLAIMS_OF: &str = "
            WITH RECURSIVE roles (role) AS (
                SELECT min(role) FROM idempotent_record
                UNION ALL
                SELECT (SELECT min(c.role) FROM idempotent_record AS c WHERE c.role > roles.role)
                FROM roles
                WHERE roles.role IS NOT NULL)
            SELECT role, key, subject, fingerprint, message_id, outcome, detail, request_body,
                created_at, concluded_at, expired_at
            FROM idempotent_record
            WHERE key = ?2
                AND role IN (SELECT role FROM roles WHERE ?1 IS NULL OR role = ?1)
            ORDER BY created_at, role";
        let rows: Vec<RawClaim> = sqlx::query_as(CLAIMS_OF)
            .bind(role.map(RoleName::as_str))
            .bind(key)
            .fetch_all(self.readers())
            .await
            .map_err(from_sqlx)?;
        rows.into_iter().map(TryInto::try_into).collect()
    }

    async fn parked(&self, subject: Option<&str>, limit: u32) -> Result<Vec<ParkedRow>> {
        const PARKED: &str = "
            SELECT role, key, awaits, message_id, event_type, message, headers, parked_at, deadline, woken_at
            FROM parked_event
            WHERE ?1 IS NULL OR subject = ?1
            ORDER BY deadline, role, key
            LIMIT ?2";
        let rows = sqlx::query(PARKED)
            .bind(subject)
            .bind(limit)
            .fetch_all(self.readers())
            .await
            .map_err(from_sqlx)?;
        rows.iter().map(parked).collect()
    }

    async fn outbox_about(&self, aggregate: &str) -> Result<Vec<OutboxRow>> {
        const OUTBOX_ABOUT: &str = "
            SELECT id, aggregate, addressee, event_type, message_id, headers, message, created_at,
                failures, last_error
            FROM outbox
            WHERE aggregate = ?1
            ORDER BY id";
        let rows = sqlx::query(OUTBOX_ABOUT)
            .bind(aggregate)
            .fetch_all(self.readers())
            .await
            .map_err(from_sqlx)?;
        rows.iter().map(outbox_row).collect()
    }

    async fn repairs_about(&self, subject: &str) -> Result<Vec<RepairRow>> {
        const REPAIRS_ABOUT: &str = "
            SELECT id, at, actor, what, subject, role, key, before, after
            FROM repair
            WHERE subject = ?1
            ORDER BY id";
        let rows = sqlx::query(REPAIRS_ABOUT)
            .bind(subject)
            .fetch_all(self.readers())
            .await
            .map_err(from_sqlx)?;
        rows.iter().map(repair).collect()
    }

    async fn dead_letters(&self, filter: &DeadFilter, limit: u32) -> Result<Vec<DeadLetter>> {
        const DEAD_LETTERS: &str = "
            SELECT id, role, message_id, key, reason, detail, raw, headers, deliveries, deaths,
                status, died_at, actor, actor_reason
            FROM dead_letter
            WHERE (?1 IS NULL OR role = ?1) AND (?2 IS NULL OR status = ?2)
                AND (?3 IS NULL OR reason = ?3)
            ORDER BY id
            LIMIT ?4";
        // A statement of its own: an optional condition would not use the index.
        const DEAD_LETTERS_OF_KEY: &str = "
            SELECT id, role, message_id, key, reason, detail, raw, headers, deliveries, deaths,
                status, died_at, actor, actor_reason
            FROM dead_letter
            WHERE key = ?5 AND (?1 IS NULL OR role = ?1) AND (?2 IS NULL OR status = ?2)
                AND (?3 IS NULL OR reason = ?3)
            ORDER BY id
            LIMIT ?4";
        let (statement, key) = match &filter.key {
            Some(key) => (DEAD_LETTERS_OF_KEY, Some(key)),
            None => (DEAD_LETTERS, None),
        };
        let mut query = sqlx::query_as::<_, RawDeadLetter>(statement)
            .bind(filter.role.as_ref().map(RoleName::as_str))
            .bind(filter.status.map(<&str>::from))
            .bind(&filter.reason)
            .bind(limit);
        if let Some(key) = key {
            query = query.bind(key);
        }
        let rows = query.fetch_all(self.readers()).await;
        let rows = rows.map_err(from_sqlx)?;
        rows.into_iter().map(TryInto::try_into).collect()
    }

    async fn dead_letter(&self, id: i64) -> Result<Option<DeadLetter>> {
        const DEAD_LETTER: &str = "
            SELECT id, role, message_id, key, reason, detail, raw, headers, deliveries, deaths,
                status, died_at, actor, actor_reason
            FROM dead_letter
            WHERE id = ?1";
        let row: Option<RawDeadLetter> = sqlx::query_as(DEAD_LETTER)
            .bind(id)
            .fetch_optional(self.readers())
            .await
            .map_err(from_sqlx)?;
        row.map(TryInto::try_into).transpose()
    }

    async fn claim_counts(&self) -> Result<Vec<(RoleName, String, u64)>> {
        const CLAIM_COUNTS: &str = "
            SELECT role, outcome, count(*) FROM idempotent_record
            GROUP BY role, outcome
            ORDER BY role, outcome";
        let rows: Vec<(String, String, i64)> = sqlx::query_as(CLAIM_COUNTS)
            .fetch_all(self.readers())
            .await
            .map_err(from_sqlx)?;
        let counts = rows.into_iter().map(|(role, outcome, count)| {
            let count = u64::try_from(count).unwrap_or(0);
            (RoleName::new(role), outcome, count)
        });
        Ok(counts.collect())
    }
}

const ORDER_SUMMARY: &str = "
    SELECT o.order_id, o.user_id, o.status, o.version, o.currency, o.total_minor,
        o.paid_minor, o.refunded_minor, o.pay_deadline, r.status AS reservation
    FROM orders AS o
    LEFT JOIN reservation AS r ON r.order_id = o.order_id
    WHERE o.order_id = ?1";
pub(super) async fn order_summary(
    connection: &mut SqliteConnection,
    order_id: &str,
) -> Result<Option<OrderSummary>> {
    let row: Option<SummaryRow> = sqlx::query_as(ORDER_SUMMARY)
        .bind(order_id)
        .fetch_optional(&mut *connection)
        .await
        .map_err(from_sqlx)?;
    let Some(row) = row else { return Ok(None) };
    let earned = earned(connection, order_id).await?;
    row.summary(earned).map(Some)
}

const CREATED: &str = "
    SELECT o.created_at, o.user_id, o.currency, o.total_minor, count(l.line_no),
        coalesce(sum(l.charge), 0), o.pay_deadline
    FROM orders AS o
    LEFT JOIN order_line AS l ON l.order_id = o.order_id
    WHERE o.order_id = ?1
    GROUP BY o.order_id";
async fn created(connection: &mut SqliteConnection, order_id: &str) -> Result<Vec<Moment>> {
    type Row = (i64, String, String, i64, i64, i64, i64);
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
    SELECT at, from_status, to_status, key, version FROM order_transition
    WHERE order_id = ?1
    ORDER BY version";
async fn steps(connection: &mut SqliteConnection, order_id: &str) -> Result<Vec<Moment>> {
    let rows: Vec<(i64, Option<String>, String, String, i64)> = sqlx::query_as(STEPS)
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
    WHERE order_id = ?1
    ORDER BY created_at, provider, trade_no";
async fn payments(connection: &mut SqliteConnection, order_id: &str) -> Result<Vec<Moment>> {
    type Row = (i64, String, String, String, Option<String>, i64, String);
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
    WHERE order_id = ?1
    ORDER BY created_at, provider, refund_no";
async fn refunds(connection: &mut SqliteConnection, order_id: &str) -> Result<Vec<Moment>> {
    type Row = (
        i64,
        i64,
        String,
        String,
        Option<String>,
        String,
        i64,
        String,
    );
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
    SELECT created_at, updated_at, status, version FROM reservation WHERE order_id = ?1";
async fn reservation(connection: &mut SqliteConnection, order_id: &str) -> Result<Vec<Moment>> {
    let row: Option<(i64, i64, String, i64)> = sqlx::query_as(RESERVATION)
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
    WHERE order_id = ?1
    ORDER BY at, sku_id, flow_id";
async fn stock_flows(connection: &mut SqliteConnection, order_id: &str) -> Result<Vec<Moment>> {
    let rows: Vec<(i64, String, String, i64, i64)> = sqlx::query_as(STOCK_FLOWS)
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
    WHERE source_type = 'ORDER' AND source_id = ?1
    UNION
    SELECT at, user_id, kind, source_type, source_id, amount, balance_after
    FROM account_flow
    WHERE source_type = 'REFUND' AND source_id > ?2 || '/' AND source_id < ?2 || '0'
    UNION
    SELECT at, user_id, kind, source_type, source_id, amount, balance_after
    FROM account_flow
    WHERE user_id = (SELECT user_id FROM orders WHERE order_id = ?1)
        AND reverses_source_type = 'ORDER' AND reverses_source_id = ?1
    ORDER BY 1, 2, 3, 4, 5";
async fn account_flows(connection: &mut SqliteConnection, order_id: &str) -> Result<Vec<Moment>> {
    let escaped = Key::new(&[order_id]).map_or_else(|_| String::new(), |key| key.to_string());
    let rows: Vec<(i64, String, String, String, String, i64, i64)> = sqlx::query_as(ACCOUNT_FLOWS)
        .bind(order_id)
        .bind(escaped)
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
    SELECT f.kind, f.amount + coalesce((
        SELECT sum(r.amount) FROM account_flow AS r
        WHERE r.user_id = f.user_id AND r.kind = f.kind
            AND r.reverses_source_type = f.source_type AND r.reverses_source_id = f.source_id), 0)
    FROM account_flow AS f
    WHERE f.source_type = 'ORDER' AND f.source_id = ?1
    ORDER BY f.kind";
async fn earned(
    connection: &mut SqliteConnection,
    order_id: &str,
) -> Result<Vec<(AccountKind, i64)>> {
    let rows: Vec<(String, i64)> = sqlx::query_as(EARNED)
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
    order_id: String,
    user_id: String,
    status: String,
    version: i64,
    currency: String,
    total_minor: i64,
    paid_minor: i64,
    refunded_minor: i64,
    pay_deadline: i64,
    reservation: Option<String>,
}

impl SummaryRow {
    fn summary(self, earned: Vec<(AccountKind, i64)>) -> Result<OrderSummary> {
        Ok(OrderSummary {
            order_id: OrderId::literal(&self.order_id),
            user_id: UserId::literal(&self.user_id),
            status: self.status.parse().map_err(|e| corrupt("orders", e))?,
            version: self.version,
            currency: Currency::new(&self.currency).map_err(|e| corrupt("orders", e))?,
            total_minor: self.total_minor,
            paid_minor: self.paid_minor,
            refunded_minor: self.refunded_minor,
            pay_deadline: Timestamp(self.pay_deadline),
            reservation: match self.reservation {
                Some(status) => Some(status.parse().map_err(|e| corrupt("reservation", e))?),
                None => None,
            },
            earned,
        })
    }
}

#[derive(FromRow)]
struct RawClaim {
    role: String,
    key: String,
    subject: String,
    fingerprint: Vec<u8>,
    message_id: String,
    outcome: String,
    detail: Option<String>,
    request_body: Option<String>,
    created_at: i64,
    concluded_at: i64,
    expired_at: Option<i64>,
}

impl TryFrom<RawClaim> for ClaimRow {
    type Error = Error;

    fn try_from(row: RawClaim) -> Result<Self> {
        let fingerprint = Fingerprint::from_bytes(&row.fingerprint).ok_or_else(|| {
            let bytes = row.fingerprint.len();
            corrupt(
                "idempotent_record",
                format!("the fingerprint of {} has {bytes} bytes, not 32", row.key),
            )
        })?;
        Ok(Self {
            role: RoleName::new(row.role),
            key: Key::stored(&row.key),
            subject: row.subject,
            fingerprint,
            message_id: row.message_id,
            outcome: row.outcome,
            detail: row.detail,
            body: row.request_body,
            created_at: Timestamp(row.created_at),
            concluded_at: Timestamp(row.concluded_at),
            expired_at: row.expired_at.map(Timestamp),
        })
    }
}

#[derive(FromRow)]
struct RawDeadLetter {
    id: i64,
    role: String,
    message_id: Option<String>,
    key: Option<String>,
    reason: String,
    detail: String,
    raw: Vec<u8>,
    headers: String,
    deliveries: u32,
    deaths: u32,
    status: String,
    died_at: i64,
    actor: Option<String>,
    actor_reason: Option<String>,
}

impl TryFrom<RawDeadLetter> for DeadLetter {
    type Error = Error;

    fn try_from(row: RawDeadLetter) -> Result<Self> {
        Ok(Self {
            id: row.id,
            role: RoleName::new(row.role),
            message_id: row.message_id,
            key: row.key.as_deref().map(Key::stored),
            reason: row.reason,
            detail: row.detail,
            raw: row.raw,
            headers: serde_json::from_str(&row.headers).map_err(|e| corrupt("dead_letter", e))?,
            deliveries: row.deliveries,
            deaths: row.deaths,
            status: row.status.parse().map_err(|e| corrupt("dead_letter", e))?,
            died_at: Timestamp(row.died_at),
            actor: row.actor,
            actor_reason: row.actor_reason,
        })
    }
}
