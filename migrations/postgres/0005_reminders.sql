-- When somebody is to be reminded of an unpaid order; NULL if nobody is, or has been.
ALTER TABLE orders ADD COLUMN remind_at BIGINT;

CREATE INDEX orders_remind ON orders (remind_at) WHERE remind_at IS NOT NULL;
