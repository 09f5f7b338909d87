//! Rules for names: DNS labels, subdomains, label and annotation keys, generated names.
