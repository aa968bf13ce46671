"""Makes the dashboards in `config/grafana/dashboards`; `python -m tests.dashboards` writes them."""
