"""Estimators of the evidence on three problems: many modes, images, a hierarchical regression."""
