"""Where a site's rows are, and what may be asked of them.

queries   what may be asked, as data: both roles know a query's shape, only a site can answer it
source    what answers queries; the contract that every engine keeps
cuts      counts up to cuts, for engines that have no function for it
duckdb    CSV and Parquet files, read by DuckDB (duckdb_files: how cells become numbers and texts)

Sources know no protocol and no network.
"""
