-- Reconciliation also looks at refusals that were counted as free; without this it reads the table.
CREATE INDEX attempt_refused ON attempt (opened_at)
    WHERE state = 'settled' AND outcome = 'upstream_error';
