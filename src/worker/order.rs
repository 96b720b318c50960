//! The order role: what is asked of an order, and what became of its stock.

use super::order_rows::OrderMachine;

/// Consumes `order.create`, `cancel`, `expire`, `ship`, `complete`, `refund`, `remind`, `stock.deducted` and
/// `stock.rejected`.
pub type OrderRole = OrderMachine<false>;
