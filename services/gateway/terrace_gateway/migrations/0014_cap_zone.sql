-- Only a calendar window has a zone and a unit. What a writer gives with another window is not kept:
-- the identity of a cap ignores it, and readers compared it, so that one cap seemed to be two, and a
-- declared one was retired.

CREATE OR REPLACE FUNCTION normalise_cap() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.window_kind := coalesce(NEW.window_kind,
                                CASE NEW.window_seconds WHEN 0 THEN 'lifetime' ELSE 'fixed' END);
    IF NEW.window_kind = 'calendar' THEN
        NEW.window_zone := coalesce(NEW.window_zone, 'UTC');
        PERFORM clock_timestamp() AT TIME ZONE NEW.window_zone;   -- an unknown zone is refused here
        NEW.window_seconds := -CASE NEW.window_unit
            WHEN 'minute' THEN 60 WHEN 'hour' THEN 3600 WHEN 'day' THEN 86400
            WHEN 'week' THEN 604800 ELSE 2592000 END;
        NEW.window_key := 'calendar ' || coalesce(NEW.window_unit, '?') || ' ' || NEW.window_zone;
        RETURN NEW;
    END IF;
    NEW.window_zone := 'UTC';
    NEW.window_unit := NULL;
    IF NEW.window_kind = 'rolling' THEN
        NEW.window_seconds := -abs(NEW.window_seconds);
        NEW.window_key := 'rolling';
    ELSE
        NEW.window_key := '';
    END IF;
    RETURN NEW;
END $$;

-- The trigger does it. A declared cap that was retired so comes back with the next version.
UPDATE cap SET window_zone = 'UTC', window_unit = NULL
    WHERE window_kind <> 'calendar' AND (window_zone <> 'UTC' OR window_unit IS NOT NULL);
