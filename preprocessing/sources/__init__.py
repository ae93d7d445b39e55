"""One reader per input format; each yields documents as (doc_id, title, text)."""
