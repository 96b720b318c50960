-- When somebody is to be reminded of an unpaid order; NULL if nobody is, or has been.
ALTER TABLE orders ADD COLUMN remind_at BIGINT, ADD INDEX orders_remind (remind_at);
