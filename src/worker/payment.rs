//! The payment role: what payment providers report. It moves the same orders as the order role, by
//! the same state machine; the guards of their rows decide a race between the two.

use super::order_rows::OrderMachine;

/// Consumes `payment.succeeded`, `payment.failed`, `refund.succeeded` and `refund.failed`.
pub type PaymentRole = OrderMachine<true>;
