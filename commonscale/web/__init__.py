"""What the daemons' pages share: sessions, safe headers, certificates of visitors, live updates."""
